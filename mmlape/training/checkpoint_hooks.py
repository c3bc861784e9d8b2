"""Hooks for checkpoints: written so that a killed process or a full disk cannot damage them, loaded without running
code in them, and compared with the model and the record of the training."""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any, get_type_hints

from mmengine.dist import is_main_process
from mmengine.fileio import LocalBackend, register_backend
from mmengine.hooks import CheckpointHook as _CheckpointHook
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmlape.atomic import atomic_write, digest_of, remove_leftovers
from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.matching import match, misfits, problems_of
from mmlape.checkpoints.report import LoadReport, listed
from mmlape.checks import check_bool, check_option, check_positive_int, check_type, did_you_mean
from mmlape.preemption import in_slurm_job
from mmlape.registry import HOOKS

from .resume_schedules import schedule_warning
from .resume_state import IMAGES, OUTDATED, check_training_state
from .save_at_signal import SaveAtSignal
from .stop_hooks import all_finite, check_finite, unwrapped

BACKEND = 'mmlape_whole_files'  # saved configs use this name
# Written at SLURM's signal, and deleted after the next checkpoint: what is kept is what an unbroken run keeps.
_INTERRUPTED = 'interrupted.pth'
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_LEAST = 0.05  # a checkpoint to start from that fills less of the model belongs to something else
_BACKBONE = 'backbone.'
_LOOSEN = '--allow-partial (CheckWeightsHook.allow_partial) loads what fits'


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
    * In a SLURM job, SIGTERM and SIGUSR1 make it write ``interrupted.pth`` (:class:`SaveAtSignal`).

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
        options |= dict(zip(signature(_CheckpointHook).parameters, args))
        for name in ('save_best', 'rule'):  # (a, b) on a command line
            if isinstance(options.get(name), tuple):
                options[name] = list(options[name])
        _check_options(options)
        try:
            super().__init__(**options)
        except AssertionError as error:  # how MMEngine refuses
            raise ValueError(str(error)) from None
        self._at_signal = SaveAtSignal(self._save_interrupted)

    def before_run(self, runner: Runner) -> None:
        """Listen to SLURM's signals."""
        if in_slurm_job():
            runner.register_hook(self._at_signal)

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
        self._take_up_best(runner)
        if local and is_main_process():
            folders = {Path(self.out_dir), Path(runner.work_dir)}
            if lost := [name for folder in folders for name in remove_leftovers(folder)]:
                runner.logger.info(f'Removed drafts of an earlier run: {", ".join(lost)}')

    def _take_up_best(self, runner: Runner) -> None:
        """Look for best checkpoints in this run's folder, which may be a copy of that of the resumed run, and delete
        what that run had no time to."""
        hub, place = runner.message_hub, self.file_backend.join_path
        for key in [key for key in hub.runtime_info if key.startswith('best_ckpt')]:
            path = place(self.out_dir, Path(hub.get_info(key)).name)
            hub.update_info(key, path)
            if key == 'best_ckpt':
                self.best_ckpt_path = path
            else:
                getattr(self, 'best_ckpt_path_dict', {})[key.removeprefix('best_ckpt_')] = path
        if is_main_process():
            for name in hub.get_info(OUTDATED, []):
                _delete(self.file_backend, place(self.out_dir, Path(name).name))

    def after_train(self, runner: Runner) -> None:
        """Publish as upstream does; raise UnsavedError if the last checkpoint is missing."""
        super().after_train(runner)
        if self._unsaved:
            what = '; '.join(self._unsaved.values())
            raise UnsavedError(f'{what}; the newest checkpoint is {self.last_ckpt}')

    def _save_checkpoint_with_step(self, runner: Runner, step: int, meta: dict) -> None:
        """Save, then name it in ``last_checkpoint``, then delete the oldest."""
        path = self.file_backend.join_path(self.out_dir, self.filename_tmpl.format(step))
        # Superseded by a better checkpoint; delete only after the new one is written. Names only: folders are copied.
        outdated = set(getattr(self.file_backend, 'later', ())) - _best_checkpoints(runner)
        runner.message_hub.update_info(OUTDATED, sorted(Path(each).name for each in outdated))

        def save() -> None:
            hub, limit = runner.message_hub, self.max_keep_ckpts
            steps = [*(each for each in getattr(self, 'keep_ckpt_ids', ()) if each != step), step]
            self.last_ckpt = path
            hub.update_info('last_ckpt', path)
            if limit > 0:
                # With the surplus: if it is not deleted any more, MMEngine does so when it resumes from this file.
                hub.update_info('keep_ckpt_ids', steps)
            self._write(runner, self.filename_tmpl.format(step), meta, self.by_epoch)
            self.file_backend.remove(self.file_backend.join_path(self.out_dir, _INTERRUPTED))
            if limit > 0:
                self.keep_ckpt_ids = deque(steps, limit)
                hub.update_info('keep_ckpt_ids', steps[-limit:])
                for old in map(self.filename_tmpl.format, steps[:-limit]):
                    self.file_backend.remove(self.file_backend.join_path(self.out_dir, old))

        self._attempt(runner, 'checkpoint', path, save)

    def _write(self, runner: Runner, name: str, meta: dict, by_epoch: bool) -> None:
        options = dict(save_optimizer=self.save_optimizer, by_epoch=by_epoch, **self.args)
        options |= dict(file_client_args=self.file_client_args, backend_args=self.backend_args)
        options |= dict(save_param_scheduler=self.save_param_scheduler, meta=meta)
        runner.save_checkpoint(self.out_dir, name, **options)
        path = self.file_backend.join_path(self.out_dir, name)
        if is_main_process():
            atomic_write(Path(runner.work_dir, 'last_checkpoint'), path.encode())

    def _save_interrupted(self, runner: Runner) -> None:
        """Save after any step. ``last_ckpt`` stays, on which it depends whether a best checkpoint is saved."""
        meta = dict(epoch=runner.epoch, iter=runner.iter + 1)
        save = partial(self._write, runner, _INTERRUPTED, meta, by_epoch=False)
        self._attempt(runner, 'interrupted', _INTERRUPTED, save)
        self._unsaved.pop('interrupted', None)  # an error only until the next checkpoint

    def _save_best_checkpoint(self, runner: Runner, metrics: dict) -> None:
        if self.save_best:
            save = partial(super()._save_best_checkpoint, runner, metrics)
            self._attempt(runner, 'best', 'the best checkpoint', save)

    def _attempt(self, runner: Runner, kind: str, what: str, save: Callable[[], Any]) -> None:
        """Save; delete files afterwards; undo if the disk is full, and note it until this ``kind`` is saved again."""
        check_finite(runner, self.last_ckpt)
        hub, backend = runner.message_hub, self.file_backend
        before = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(self).items()}
        infos = dict(hub.runtime_info)
        self.file_backend, started = _DeletesLater(backend), time.monotonic()
        try:
            save()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            self.__dict__.update(before)
            hub.runtime_info.clear()
            hub.runtime_info.update(infos)
            self._unsaved[kind] = f'{what} could not be written: {error.strerror}'
            runner.logger.error(
                f'{self._unsaved[kind]}. Training continues; earlier checkpoints are unchanged, the newest is '
                f'{self.last_ckpt}. Free disk space before the next one is due.'
            )
        else:
            self._unsaved.pop(kind, None)
            if kind != 'best':
                self._at_signal.saved(started)
            outdated = set(self.file_backend.later) - _best_checkpoints(runner)
            for path in outdated if is_main_process() else ():
                _delete(backend, path)
        finally:
            self.file_backend = backend


def _best_checkpoints(runner: Runner) -> set[str]:
    return {
        path for key, path in runner.message_hub.runtime_info.items() if key.startswith('best_ckpt')
    }


def _delete(backend: Any, path: str) -> None:
    if Path(path).is_symlink():
        return  # a file that somebody else keeps elsewhere
    if backend.isfile(path):
        backend.remove(path)
    elif backend.isdir(path):  # sharded
        backend.rmtree(path)


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
    """Check options before MMEngine uses them: it takes any."""
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


def built_loops(runner: Runner) -> list[str]:
    """Return which of train, val and test the runner is to run or has run; MMEngine's properties would build them."""
    loops = {name: getattr(runner, f'_{name}_loop') for name in ('train', 'val', 'test')}
    return [name for name, loop in loops.items() if isinstance(loop, BaseLoop)]


@HOOKS.register_module()
class SafeLoadingHook(Hook):
    """Switches :func:`mmlape.safe_loading` on before the runner loads weights or resumes.

    In ``default_hooks`` of our base configs, so that they are as safe in upstream's tools as in ``mmlape train``. As
    :class:`ResumeCheckHook`, it checks the state of a training that is resumed.
    """

    priority = 'HIGHEST'

    def __init__(self) -> None:
        safe_loading()  # MMEngine's FlexibleRunner loads before the first call of a hook

    def before_run(self, runner: Runner) -> None:
        """MMEngine calls it before it loads ``load_from``, and before ``init_cfg`` of the model."""
        safe_loading()

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the state, unless the other hook does."""
        if runner._resume and not any(isinstance(hook, ResumeCheckHook) for hook in runner.hooks):
            check_training_state(runner, checkpoint)


@HOOKS.register_module()
class CheckWeightsHook(Hook):
    """Check a checkpoint before its weights are used; MMEngine only logs what does not fit.

    To test, to validate and to resume, the checkpoint must hold every parameter and buffer of the model in its shape,
    and nothing else. A training may start from weights that fit in part (``load_from``), at least 5 % of the model; the
    log then says what was loaded, what stays random and what is unused. NaN, infinite values and integer weights are
    always refused. The tools of mmlape add this hook to every run. In any config::

        default_hooks = dict(check_weights=dict(type='mmlape.CheckWeightsHook'))

    Args:
        allow_partial: Load what fits also to test and to resume, and log what is random. Default False.

    Raises:
        CheckpointError: A ``ValueError``, from the runner's ``train``, ``val`` or ``test``.
    """

    priority = 'VERY_HIGH'  # before the hook of EMA, which fails on what does not fit

    def __init__(self, allow_partial: bool = False) -> None:
        self.allow_partial = check_bool('allow_partial', allow_partial)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check what was read and is not in use yet."""
        # Not `runner.cfg`, which is that of a first start (processes.build_runner).
        file, resumes = str(runner._load_from or 'the last checkpoint'), bool(runner._resume)
        state = checkpoint.get('state_dict', checkpoint)
        report = match(runner.model, state, Path(file).name)
        report.whole = any(name.startswith(_BACKBONE) for name in report.sizes)
        if resumes:
            report.problems += _problems_of_a_training(checkpoint, state)
        partial = self.allow_partial or ('train' in built_loops(runner) and not resumes)
        fits = bool(report.problems) or report.matched_fraction >= _LEAST
        too_little = not (fits or self.allow_partial)
        # With test-time augmentation, mask heads, whose predictions cannot be merged, are left out.
        is_tta = isinstance(unwrapped(runner.model), BaseTTAModel)
        complete = not report.fresh and (is_tta or not report.left_out)
        if report.problems or too_little or not (complete or partial):
            raise CheckpointError(_refusal(file, report, of_parts=too_little or not partial))
        missing = [
            what
            for what in ('optimizer', 'param_schedulers')
            if resumes
            and getattr(runner, what.replace('optimizer', 'optim_wrapper'))
            and not checkpoint.get(what)
        ]
        if missing:
            runner.logger.warning(f'{file} holds no {" and no ".join(missing)}: these start anew')
        if not complete:
            text = str(report).replace('fresh:', 'stays random:')
            runner.logger.warning(f'{file} is loaded in part:\n{text}')


def _refusal(file: str, report: LoadReport, of_parts: bool) -> str:
    """Why a checkpoint is refused, in one line; with ``of_parts``, also because it fits in part only."""
    parts = list(report.problems[:2])
    if len(report.problems) > 2:
        parts.append(f'{len(report.problems) - 2} more of this kind')
    if of_parts and report.sizes:  # else nothing was compared
        parts += misfits(report)
        if any(f'{_BACKBONE}{name}' in report.sizes for name in report.left_out):
            parts.append('it is only a backbone: name it in init_cfg of model.backbone')
        elif report.matched_fraction < 0.5:
            parts.append('this looks like the checkpoint of another model')
    text = f'{file} does not fit the {report.model}: ' + '; '.join(parts)
    return text if report.problems or not of_parts else f'{text}. {_LOOSEN}'


def _problems_of_a_training(checkpoint: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """Return the reasons why the state of a training, beside the weights, prevents resuming."""
    meta, hub = checkpoint.get('meta'), checkpoint.get('message_hub')
    counted = isinstance(meta, Mapping) and all(
        isinstance(meta.get(name), int) and meta[name] >= 0 for name in ('epoch', 'iter')
    )
    if not counted or not isinstance(hub, Mapping):
        return ['it holds only weights, no training state: name it in load_from, not in --resume']
    problems = []
    if not all_finite(checkpoint.get('optimizer')):
        problems.append('its optimizer state is NaN or infinite')
    averaged = checkpoint.get('ema_state_dict')
    if isinstance(averaged, Mapping):
        prefix = 'module.'
        weights = {k.removeprefix(prefix): v for k, v in averaged.items() if k.startswith(prefix)}
        plain = {name.removeprefix(prefix): value for name, value in state.items()}
        other = [
            name
            for name in sorted(weights.keys() | plain.keys())
            if getattr(weights.get(name), 'shape', 0) != getattr(plain.get(name), 'shape', 1)
        ]
        if other:
            names = listed(other)
            problems.append(f'its averaged weights (EMA) are those of another model ({names})')
        problems += [f'{text} (EMA)' for text in problems_of(weights, None)]
    return problems


@HOOKS.register_module()
class ResumeCheckHook(Hook):
    """Check the state of a training that is resumed; record the images per step in each checkpoint, and warn when a
    resumed run has another number, other schedules, or is finished.

    A checkpoint is data, and those of a stranger may be made up: names of files to delete, batches to skip, states that
    the optimizer cannot compute with. They are refused before the runner takes them.

    MMEngine restores the learning rate and the schedules from the checkpoint, so after a change of the number of GPUs
    neither fits, and ``auto_scale_lr`` has no effect. ``mmlape train`` adds this hook to every run. In any config::

        custom_hooks = [dict(type='mmlape.ResumeCheckHook')]

    Raises:
        CheckpointError: A ``ValueError``, from the runner's ``train``, if the state is not one of this training.
    """

    priority = 'HIGHEST'  # before other hooks take over what is checked

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record processes, images per process and accumulated steps in the checkpoint's ``meta``."""
        checkpoint.setdefault('meta', {})[IMAGES] = _images_per_step(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check the state, and compare with the record, if this is a resumption and there is one."""
        if not runner._resume:
            return
        check_training_state(runner, checkpoint)
        if warning := schedule_warning(runner, checkpoint):
            runner.logger.warning(warning)
        then, now = (checkpoint.get('meta') or {}).get(IMAGES), _images_per_step(runner)
        if then is None or then == now:
            return
        text = f'resumed with {_describe(now)}; the checkpoint was trained with {_describe(then)}.'
        if _total(then) == _total(now):
            runner.logger.info(f'{text} The product is the same, so rates and schedules fit.')
            return
        text += (
            ' The learning rate and the schedules are those of the checkpoint (--auto-scale-lr does not '
            'change them) and were made for the other number.'
        )
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            text += ' Epochs now have another number of iterations, on which warm-up and the log depend.'
        share, rest = divmod(_total(then), now['processes'] * now['accumulated'])
        if not rest:
            text += f' To train as before: --cfg-options train_dataloader.batch_size={share}'
        runner.logger.warning(text)

    def before_train(self, runner: Runner) -> None:
        """Warn that the training is finished."""
        loop = runner.train_loop
        done, end, unit = loop.iter, loop.max_iters, 'iterations'
        if isinstance(loop, EpochBasedTrainLoop):
            # A checkpoint of the last iteration was written before its epoch was counted.
            end, unit = loop.max_epochs, 'epochs'
            done = end if done >= loop.max_iters else loop.epoch
        if runner._resume and done >= end:
            runner.logger.warning(
                f'this training is finished ({done} of {end} {unit}). To continue at its last learning rate, raise '
                f'train_cfg.max_{unit.replace("iterations", "iters")}; for a new schedule, start from its weights '
                '(load_from) in another work dir'
            )


def _images_per_step(runner: Runner) -> dict[str, int]:
    loader = runner.cfg.get('train_dataloader') or {}
    batch = loader.get('batch_size') or (loader.get('batch_sampler') or {}).get('batch_size') or 0
    optim = runner.cfg.get('optim_wrapper') or {}
    return dict(
        processes=runner.world_size, images=batch, accumulated=optim.get('accumulative_counts', 1)
    )


def _total(record: dict[str, int]) -> int:
    return record['processes'] * record['images'] * record['accumulated']


def _describe(record: dict[str, int]) -> str:
    accumulated = f' x {record["accumulated"]} accumulated' if record['accumulated'] != 1 else ''
    return f'{record["processes"]} processes x {record["images"]} images{accumulated} = {_total(record)} per step'
