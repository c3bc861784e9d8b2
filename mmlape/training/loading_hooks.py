"""Hooks for checkpoints: safe loading, whether the weights fit the model, and whether a resumed run fits its record."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.matching import match, misfits, problems_of
from mmlape.checkpoints.report import LoadReport, listed
from mmlape.checks import check_bool
from mmlape.registry import HOOKS

from .stop_hooks import all_finite, unwrapped

__all__ = ['CheckWeightsHook', 'ResumeCheckHook', 'SafeLoadingHook', 'built_loops']

_LEAST = 0.05  # a checkpoint to start from that fills less of the model belongs to something else
_BACKBONE = 'backbone.'
_LOOSEN = '--allow-partial (CheckWeightsHook.allow_partial) loads what fits'
_KEY = 'images_per_step'


def built_loops(runner: Runner) -> list[str]:
    """Which of train, val and test the runner is about to run or has run; MMEngine's properties would build them."""
    loops = {name: getattr(runner, f'_{name}_loop') for name in ('train', 'val', 'test')}
    return [name for name, loop in loops.items() if isinstance(loop, BaseLoop)]


@HOOKS.register_module()
class SafeLoadingHook(Hook):
    """Switches :func:`mmlape.safe_loading` on before the runner loads weights or resumes.

    In ``default_hooks`` of our base configs, so that they are as safe in upstream's tools as in ``mmlape train``.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """MMEngine calls it before it loads ``load_from``, and before ``init_cfg`` of the model."""
        safe_loading()


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
        # Not `runner.cfg`, which is that of a first start (mmlape.cli.build_runner).
        file, resumes = str(runner._load_from or 'the last checkpoint'), bool(runner._resume)
        state = checkpoint.get('state_dict', checkpoint)
        report = match(runner.model, state, Path(file).name)
        report.whole = any(name.startswith(_BACKBONE) for name in report.sizes)
        if resumes:
            report.problems += _problems_of_a_training(checkpoint, state)
        partial = self.allow_partial or ('train' in built_loops(runner) and not resumes)
        fits = bool(report.problems) or report.matched_fraction >= _LEAST
        too_little = not (fits or self.allow_partial)
        complete = not report.fresh and not (report.left_out and not _is_tta(runner.model))
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
    if of_parts:
        parts += misfits(report)
        if any(f'{_BACKBONE}{name}' in report.sizes for name in report.left_out):
            parts.append('it is only a backbone: name it in init_cfg of model.backbone')
        elif report.matched_fraction < 0.5:
            parts.append('this looks like the checkpoint of another model')
    text = f'{file} does not fit the {report.model}: ' + '; '.join(parts)
    return text if report.problems or not of_parts else f'{text}. {_LOOSEN}'


def _problems_of_a_training(checkpoint: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """What of the state of a training, beside the weights, prevents resuming."""
    meta, hub = checkpoint.get('meta'), checkpoint.get('message_hub')
    places = [meta.get(name) for name in ('epoch', 'iter')] if isinstance(meta, Mapping) else [None]
    counted = all(isinstance(place, int) and place >= 0 for place in places)
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


def _is_tta(model: torch.nn.Module) -> bool:
    """Whether a model is tested with augmentation: mask heads, of which predictions cannot be merged, are left out."""
    return isinstance(unwrapped(model), BaseTTAModel)


@HOOKS.register_module()
class ResumeCheckHook(Hook):
    """Record the images per step in each checkpoint, and warn when a resumed run has another number, or is finished.

    MMEngine restores the learning rate and the schedules from the checkpoint, so after a change of the number of GPUs
    neither fits, and ``auto_scale_lr`` has no effect. ``mmlape train`` adds this hook to every run. In any config::

        custom_hooks = [dict(type='mmlape.ResumeCheckHook')]
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record processes, images per process and accumulated steps in the checkpoint's ``meta``."""
        checkpoint.setdefault('meta', {})[_KEY] = _images_per_step(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare with the record, if this is a resumption and there is one."""
        then, now = (checkpoint.get('meta') or {}).get(_KEY), _images_per_step(runner)
        if not runner._resume or then is None or then == now:
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
                f'this training is finished ({done} of {end} {unit}). To continue, raise '
                f'train_cfg.max_{unit.replace("iterations", "iters")}; to train anew, use another work dir'
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
