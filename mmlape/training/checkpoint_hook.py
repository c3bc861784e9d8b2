"""Checkpoints that a killed process or a full disk cannot damage."""

from __future__ import annotations

import errno
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.runner import Runner

from mmlape.atomic import atomic_write, digest_of, remove_leftovers
from mmlape.checks import check_bool, check_positive_int, did_you_mean
from mmlape.registry import HOOKS

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
    """MMEngine's ``CheckpointHook``, with the same arguments, for files that are not lost.

    * Every checkpoint (also ``best_*``) is written beside, synced to the disk, read back and then renamed;
      ``NAME.pth.sha256`` is its digest (``sha256sum --check``). So is ``last_checkpoint``. MMEngine writes in place.
    * What is to be deleted (``max_keep_ckpts``, an earlier best) goes when what replaces it is written; in MMEngine it
      goes before.
    * When the disk (or the quota) is full, an error is logged, the earlier checkpoints stay, and training goes on; the
      next checkpoint is tried as ever.
    * Drafts that a killed run left are removed when training starts.

    In any config::

        default_hooks = dict(checkpoint=dict(type='mmlape.CheckpointHook', interval=1))

    Other places than the local disk (``s3://``, ``backend_args``), and strategies that write checkpoints themselves
    (FSDP, DeepSpeed), are written in upstream's way.

    Raises:
        TypeError, ValueError: If an option is unknown (MMEngine notices when it saves) or out of range.
        UnsavedError: From the runner's ``train``, at its end, when the last checkpoint could not be written.
    """

    backend_args: dict[str, Any] | None
    file_backend: Any

    def __init__(self, *args: Any, **options: Any) -> None:
        known = [name for name in inspect.signature(_CheckpointHook).parameters if name != 'kwargs']
        for name in options:
            if name not in known:
                hint = did_you_mean(name, known) or f'; there are {", ".join(known)}'
                raise TypeError(f'mmlape.CheckpointHook has no option {name!r}{hint}')
        super().__init__(*args, **options)
        for name, minimum in dict(interval=-1, max_keep_ckpts=-1, save_begin=0).items():
            check_positive_int(name, getattr(self, name), minimum=minimum)
        for name in ('by_epoch', 'save_optimizer', 'save_param_scheduler', 'save_last'):
            check_bool(name, getattr(self, name))

    def before_train(self, runner: Runner) -> None:
        """Choose the way of writing, remove what killed runs left, and remember what is being resumed."""
        plain = self.file_client_args is None and self.backend_args is None
        local = plain and '://' not in str(self.out_dir or runner.work_dir)
        if local:
            self.backend_args = dict(backend=BACKEND)
        self._unsaved: dict[str, str] = {}
        super().before_train(runner)
        # A resumed run has saved something as well: upstream saves the best score only if so.
        self.last_ckpt = runner.message_hub.get_info('last_ckpt', None)
        if local and is_main_process():
            lost = {
                name
                for folder in (self.out_dir, runner.work_dir)
                for name in remove_leftovers(Path(folder))
            }
            if lost:
                runner.logger.info(f'Removed what an earlier run left: {", ".join(sorted(lost))}')

    def after_train(self, runner: Runner) -> None:
        """Publish as upstream; do not end in silence without the last checkpoint."""
        super().after_train(runner)
        if self._unsaved:
            what = '; '.join(self._unsaved.values())
            raise UnsavedError(f'{what}; the newest checkpoint is {self.last_ckpt}')

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save, then name it in ``last_checkpoint``, then delete the oldest."""
        hub, name = runner.message_hub, self.filename_tmpl.format(step)
        path = self.file_backend.join_path(self.out_dir, name)
        surplus: list[int] = []
        info: dict[str, Any] = dict(last_ckpt=path)
        if self.max_keep_ckpts > 0:
            steps = [kept for kept in self.keep_ckpt_ids if kept != step]
            surplus = steps[: max(0, len(steps) + 1 - self.max_keep_ckpts)]
            # With the surplus: should it not be deleted any more, MMEngine does so when it resumes from this file.
            info['keep_ckpt_ids'] = [*steps, step]
        before = {key: hub.get_info(key, None) for key in info}
        hub.update_info_dict(info)
        saved = self._saved(
            runner,
            'checkpoint',
            path,
            lambda: runner.save_checkpoint(
                self.out_dir,
                name,
                self.file_client_args,
                save_optimizer=self.save_optimizer,
                save_param_scheduler=self.save_param_scheduler,
                meta=meta,
                by_epoch=self.by_epoch,
                backend_args=self.backend_args,
                **self.args,
            ),
        )
        if not saved:
            for key, value in before.items():
                hub.pop_info(key) if value is None else hub.update_info(key, value)
            return
        self.last_ckpt = path
        if self.max_keep_ckpts > 0:
            self.keep_ckpt_ids.extend([] if step in self.keep_ckpt_ids else [step])
            hub.update_info('keep_ckpt_ids', list(self.keep_ckpt_ids))
        if is_main_process():
            pointer = Path(runner.work_dir, 'last_checkpoint')
            if self._saved(
                runner, 'pointer', str(pointer), lambda: atomic_write(pointer, path.encode())
            ):
                for old in map(self.filename_tmpl.format, surplus):
                    _remove(self.file_backend, self.file_backend.join_path(self.out_dir, old))

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        """Save as upstream does, but delete the earlier best afterwards, and nothing if the new one is not written."""
        if not self.save_best:
            return
        hub, backend = runner.message_hub, self.file_backend
        paths = [name for name in ('best_ckpt_path', 'best_ckpt_path_dict') if hasattr(self, name)]
        before = {name: _copied(getattr(self, name)) for name in paths}
        infos = {key: hub.get_info(key) for key in hub.runtime_info if key.startswith('best_')}
        self.file_backend = _DeletesLater(backend)
        try:
            saved = self._saved(
                runner,
                'best',
                'the best checkpoint',
                lambda: super(CheckpointHook, self)._save_best_checkpoint(runner, metrics),
            )
        finally:
            later, self.file_backend = self.file_backend.later, backend
        if saved:
            best = {hub.get_info(key) for key in hub.runtime_info if key.startswith('best_ckpt')}
            for path in later:
                if path not in best:
                    _remove(backend, path)
            return
        for name, value in before.items():
            setattr(self, name, value)
        for key in [key for key in hub.runtime_info if key.startswith('best_')]:
            hub.pop_info(key)
        hub.update_info_dict(infos)

    def _saved(self, runner: Runner, kind: str, what: str, save: Callable[[], Any]) -> bool:
        """Whether there was room; what is missing stays noted until a file of its own kind is written."""
        try:
            save()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self._unsaved[kind] = f'{what} could not be written: {error.strerror}'
            runner.logger.error(
                f'{self._unsaved[kind]}. Training goes on; earlier checkpoints are as they were, the newest is '
                f'{self.last_ckpt}. Make room before the next is due.'
            )
            return False
        self._unsaved.pop(kind, None)
        return True


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


def _remove(backend: Any, path: str) -> None:
    if backend.isfile(path):
        backend.remove(path)
    elif backend.isdir(path):  # sharded
        backend.rmtree(path)


def _copied(value: Any) -> Any:
    return dict(value) if isinstance(value, dict) else value
