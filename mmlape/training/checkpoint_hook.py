"""Checkpoints that a killed process or a full disk cannot damage."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

from mmengine.dist import all_gather_object, is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.runner import Runner

from mmlape.atomic import atomic_write, digest_of, remove_leftovers
from mmlape.checks import check_option, check_positive_int, check_type, did_you_mean
from mmlape.registry import HOOKS

from .stop_hooks import NonFiniteError, all_finite, unwrapped

__all__ = ['CheckpointHook', 'UnsavedError']

BACKEND = 'mmlape_whole_files'  # as saved configs name it
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class UnsavedError(RuntimeError):
    """A training has ended, and its last checkpoint could not be written."""


class AtomicBackend(LocalBackend):
    """MMEngine's backend of local files (``backend_args=dict(backend='mmlape_whole_files')``) with atomic writes.

    ``put`` leaves ``NAME.sha256`` beside the file, as ``sha256sum`` writes and checks it; ``remove`` takes it away.
    """

    def put(self, obj, filepath) -> None:
        """Write bytes as in :func:`atomic_write`, with a digest."""
        atomic_write(Path(filepath), bytes(obj), digest=True)

    def remove(self, filepath) -> None:
        """Remove a file and its digest."""
        super().remove(filepath)
        digest_of(Path(filepath)).unlink(missing_ok=True)


register_backend(BACKEND, AtomicBackend, force=True)


@HOOKS.register_module()
class CheckpointHook(_CheckpointHook):
    """MMEngine's ``CheckpointHook``, with the same arguments and atomic writes.

    * Every checkpoint (also ``best_*``) is written beside its place, synced, read back and renamed; ``NAME.pth.sha256``
      is its digest (``sha256sum --check``). ``last_checkpoint`` is atomic too. MMEngine writes in place.
    * Old files (``max_keep_ckpts``, an earlier best) are deleted after their replacement is written; MMEngine deletes
      them before.
    * When the disk (or the quota) is full, an error is logged, the earlier checkpoints stay, and training continues.
    * Nothing that is NaN or infinite is saved, in the weights, their average (EMA), running statistics or the
      optimizer's state: the run stops, and the checkpoints before stay.
    * Drafts that a killed run left are removed when training starts.

    In any config::

        default_hooks = dict(checkpoint=dict(type='mmlape.CheckpointHook', interval=1))

    Other places than the local disk (``s3://``, ``backend_args``), and strategies that write checkpoints themselves
    (FSDP, DeepSpeed), are written in upstream's way.

    Raises:
        TypeError, ValueError: If an option is unknown (MMEngine notices when it saves) or out of range.
        NonFiniteError: From the runner's ``train``, when something is not finite and a checkpoint is due.
        UnsavedError: From the runner's ``train``, at its end, when the last checkpoint could not be written.
    """

    backend_args: dict[str, Any] | None
    file_backend: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        _check_options({**dict(zip(signature(_CheckpointHook).parameters, args)), **options})
        super().__init__(*args, **options)

    def before_train(self, runner: Runner) -> None:
        """Choose the file backend, remove drafts of killed runs, and remember the checkpoint that is resumed."""
        plain = self.file_client_args is None and self.backend_args is None
        local = plain and '://' not in str(self.out_dir or runner.work_dir)
        if local:
            self.backend_args = dict(backend=BACKEND)
        self._unsaved: dict[str, str] = {}
        super().before_train(runner)
        # Upstream saves the best score only after a checkpoint; a resumed run has one.
        self.last_ckpt = runner.message_hub.get_info('last_ckpt', None)
        if local and is_main_process():
            folders = {Path(self.out_dir), Path(runner.work_dir)}
            if lost := [name for folder in folders for name in remove_leftovers(folder)]:
                runner.logger.info(f'Removed drafts of an earlier run: {", ".join(lost)}')

    def after_train(self, runner: Runner) -> None:
        """Publish as upstream does; raise UnsavedError if the last checkpoint is missing."""
        super().after_train(runner)
        if self._unsaved:
            what = '; '.join(self._unsaved.values())
            raise UnsavedError(f'{what}; the newest checkpoint is {self.last_ckpt}')

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save, then name it in ``last_checkpoint``, then delete the oldest."""
        path = self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step))
        options = dict(save_optimizer=self.save_optimizer, by_epoch=self.by_epoch, **self.args)
        options |= dict(file_client_args=self.file_client_args, backend_args=self.backend_args)
        options |= dict(save_param_scheduler=self.save_param_scheduler, meta=meta)

        def save() -> None:
            hub, limit = runner.message_hub, self.max_keep_ckpts
            steps = [*(each for each in getattr(self, 'keep_ckpt_ids', ()) if each != step), step]
            self.last_ckpt = path
            hub.update_info('last_ckpt', path)
            if limit > 0:
                # With the surplus: if it is not deleted any more, MMEngine does so when it resumes from this file.
                hub.update_info('keep_ckpt_ids', steps)
            runner.save_checkpoint(self.out_dir, self.filename_tmpl.format(step), **options)
            if is_main_process():
                atomic_write(Path(runner.work_dir, 'last_checkpoint'), path.encode())
            if limit > 0:
                self.keep_ckpt_ids = deque(steps, limit)
                hub.update_info('keep_ckpt_ids', steps[-limit:])
                for old in map(self.filename_tmpl.format, steps[:-limit]):
                    self.file_backend.remove(self.file_backend.join_path(self.out_dir, old))

        self._attempt(runner, 'checkpoint', path, save)

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if self.save_best:
            save = partial(super()._save_best_checkpoint, runner, metrics)
            self._attempt(runner, 'best', 'the best checkpoint', save)

    def _attempt(self, runner: Runner, kind: str, what: str, save: Callable[[], Any]) -> None:
        """Save; delete files afterwards; undo if the disk is full, and note it until this ``kind`` is saved again."""
        _check_finite(runner, self.last_ckpt)
        hub, backend = runner.message_hub, self.file_backend
        before = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(self).items()}
        infos = dict(hub.runtime_info)
        self.file_backend = _DeletesLater(backend)
        try:
            save()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            vars(self).update(before)
            hub.runtime_info.clear()
            hub.runtime_info.update(infos)
            self._unsaved[kind] = f'{what} could not be written: {error.strerror}'
            runner.logger.error(
                f'{self._unsaved[kind]}. Training continues; earlier checkpoints are unchanged, the newest is '
                f'{self.last_ckpt}. Free disk space before the next one is due.'
            )
        else:
            self._unsaved.pop(kind, None)
            best = {path for key, path in hub.runtime_info.items() if 'best_ckpt' in key}
            for path in set(self.file_backend.later) - best if is_main_process() else ():
                if backend.isfile(path):
                    backend.remove(path)
                elif backend.isdir(path):  # sharded
                    backend.rmtree(path)
        finally:
            self.file_backend = backend


def _check_finite(runner: Runner, last: str | None) -> None:
    """Raise NonFiniteError in all processes if a state that is to be saved is not finite in one."""
    averages = [hook.ema_model for hook in runner.hooks if hasattr(hook, 'ema_model')]
    states = {'the model': unwrapped(runner.model).state_dict(keep_vars=True)}
    for number, average in enumerate(averages):
        states[f'the average (EMA) of the model{number or ""}'] = average.state_dict()
    states['the optimizer'] = runner.optim_wrapper.state_dict()
    found = (
        f'{key} of {what}'
        for what, state in states.items()
        for key, value in state.items()
        if not all_finite(value)
    )
    text = next((text for text in all_gather_object(next(found, None)) if text), None)
    if text:
        raise NonFiniteError(
            f'iteration {runner.iter}: {text} is NaN or infinite. Nothing is saved, and the run stops; the last '
            f'checkpoint is {last}'
        )


class _DeletesLater:
    """A file backend that notes what it is told to delete."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self.later: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def remove(self, path: str) -> None:
        self.later.append(path)

    rmtree = remove


def _check_options(options: dict[str, Any]) -> None:
    """Check options before MMEngine uses them: it takes any, and refuses some by an assertion."""
    hints = get_type_hints(_CheckpointHook.__init__)
    del hints['return']
    for name, value in options.items():
        if name not in hints:
            hint = did_you_mean(name, hints) or f'; there are {", ".join(hints)}'
            raise TypeError(f'mmlape.CheckpointHook has no option {name!r}{hint}')
        check_type(name, value, hints[name])
    for name, minimum in dict(interval=-1, max_keep_ckpts=-1, save_begin=0).items():
        check_positive_int(name, options.get(name, minimum), minimum=minimum)
    if options.get('interval') == 0:
        raise ValueError('interval must be positive, or -1 for never, got 0')
    template = options.get('filename_tmpl')
    if template is not None and '{' not in template:
        raise ValueError(
            f'filename_tmpl must have a place for the number, such as "epoch_{{}}.pth", got {template!r}'
        )
    rules = options.get('rule')
    if rules is not None and options.get('save_best') is None:
        raise ValueError(f'rule={rules!r} is for save_best, which is not given')
    for rule in [rules] if isinstance(rules, str) else rules or ():
        check_option('rule', rule, ('greater', 'less'))
