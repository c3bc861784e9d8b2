"""Hooks around loading a checkpoint: it is loaded safely, it fits the model, and a resumed training fits its record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import BaseLoop, EpochBasedTrainLoop, Runner

from mmlape.checkpoints import CheckpointError
from mmlape.checkpoints.loaders import safe_loading
from mmlape.checkpoints.matching import match, misfits, problems_of
from mmlape.checkpoints.report import LoadReport, listed
from mmlape.checks import check_bool
from mmlape.registry import HOOKS

__all__ = ['CheckWeightsHook', 'ResumeCheckHook', 'SafeLoadingHook', 'built_loops']

# Below this share of the values, a checkpoint to start from is that of something else.
_LEAST = 0.05
_BACKBONE = 'backbone.'
_LOOSEN = '--allow-partial (CheckWeightsHook.allow_partial) takes what fits'
_KEY = 'images_per_step'


def built_loops(runner: Runner) -> list[str]:
    """Which of train, val and test the runner is about to run or has run.

    MMEngine has no public way to ask: its properties build the loop that is asked for.
    """
    loops = {name: getattr(runner, f'_{name}_loop') for name in ('train', 'val', 'test')}
    return [name for name, loop in loops.items() if isinstance(loop, BaseLoop)]


def _resumes(runner: Runner) -> bool:
    """Whether a runner resumes; its ``cfg`` does not say it, see :func:`mmlape.cli.build_runner`."""
    return bool(runner._resume)


@HOOKS.register_module()
class SafeLoadingHook(Hook):
    """Switches :func:`mmlape.safe_loading` on before the runner loads weights or resumes.

    One entry of ``default_hooks`` in our base configs, so that a config of ours is as safe in MMDetection's
    ``tools/train.py`` as in ``mmlape train``.
    """

    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """MMEngine calls it before it loads ``load_from``, and before ``init_cfg`` of the model."""
        safe_loading()


@HOOKS.register_module()
class CheckWeightsHook(Hook):
    """Check a checkpoint before its weights are used; MMEngine only logs what does not fit, and goes on.

    To test, to validate and to resume, the checkpoint must hold every parameter and buffer of the model in its shape,
    and nothing else. A training may start from weights of which a part fits (``load_from``); the log then says what was
    taken, what stays as initialised and what was not used. Never taken are weights that are NaN or infinite, integers
    for weights, and, to start from, a checkpoint of which less than 5 % of the model can be filled.

    The tools of mmlape add this hook to every run. In any config::

        default_hooks = dict(check_weights=dict(type='mmlape.CheckWeightsHook'))

    Args:
        allow_partial: Take what fits also to test and to resume, and say what is random; NaN and infinite values are
            refused all the same. Default False.

    Raises:
        CheckpointError: A ``ValueError``, from the runner's ``train``, ``val`` or ``test``.
    """

    # Before the hook of EMA, which would stumble over what does not fit.
    priority = 'VERY_HIGH'

    def __init__(self, allow_partial: bool = False) -> None:
        self.allow_partial = check_bool('allow_partial', allow_partial)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Check what was read and is not in use yet."""
        file, resumes = str(runner._load_from or 'the last checkpoint'), _resumes(runner)
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
        if not complete:
            text = str(report).replace('fresh:', 'stays random:')
            runner.logger.warning(f'{file} is taken in part:\n{text}')


def _refusal(file: str, report: LoadReport, of_parts: bool) -> str:
    """Why a checkpoint is refused, in one line; with ``of_parts``, also because it fits in part only."""
    parts = list(report.problems[:2])
    if len(report.problems) > 2:
        parts.append(f'{len(report.problems) - 2} more of this kind')
    if of_parts:
        parts += misfits(report)
        if any(f'{_BACKBONE}{name}' in report.sizes for name in report.left_out):
            parts.append('it is a backbone alone, which init_cfg of model.backbone takes')
        elif report.matched_fraction < 0.5:
            parts.append('this looks like the checkpoint of another model')
    text = f'{file} does not fit the {report.model}: ' + '; '.join(parts)
    return text if report.problems or not of_parts else f'{text}. {_LOOSEN}'


def _problems_of_a_training(checkpoint: Mapping[str, Any], state: Mapping[str, Any]) -> list[str]:
    """What of the state of a training, beside the weights, cannot be gone on from."""
    meta, hub = checkpoint.get('meta'), checkpoint.get('message_hub')
    places = [meta.get(name) for name in ('epoch', 'iter')] if isinstance(meta, Mapping) else [None]
    if not all(isinstance(place, int) and place >= 0 for place in places) or not isinstance(
        hub, Mapping
    ):
        return [
            'it holds weights alone, no state of a training: name it in load_from, not in --resume'
        ]
    tensors = _tensors_within(checkpoint.get('optimizer'), 'optimizer')
    problems = problems_of(tensors, None)
    averaged = checkpoint.get('ema_state_dict')
    if isinstance(averaged, Mapping):
        weights = {
            k.removeprefix('module.'): v for k, v in averaged.items() if k.startswith('module.')
        }
        plain = {name.removeprefix('module.'): value for name, value in state.items()}
        other = [
            name
            for name in sorted(weights.keys() | plain.keys())
            if getattr(weights.get(name), 'shape', 0) != getattr(plain.get(name), 'shape', 1)
        ]
        if other:
            problems.append(
                f'its averaged weights (EMA) are those of another model ({listed(other)})'
            )
        problems += [f'{text} (EMA)' for text in problems_of(weights, None)]
    return problems


def _tensors_within(value: Any, name: str) -> dict[str, torch.Tensor]:
    """Tensors in dicts and lists, by the way to them."""
    if isinstance(value, torch.Tensor):
        return {name: value}
    items: Iterable = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    return {
        found: tensor
        for key, part in items
        for found, tensor in _tensors_within(part, f'{name}.{key}').items()
    }


def _is_tta(model: torch.nn.Module) -> bool:
    """Whether a model is tested with augmentation: mask heads, of which predictions cannot be merged, are left out."""
    return isinstance(model.module if is_model_wrapper(model) else model, BaseTTAModel)


@HOOKS.register_module()
class ResumeCheckHook(Hook):
    """Write into each checkpoint how many images a step had, and warn when a resumed run has another number.

    A run that is resumed after its end says so, too.

    MMEngine restores the learning rate and the state of the schedules with the checkpoint, so after a change of the
    number of GPUs neither fits any more, and ``auto_scale_lr`` has no effect; it does not notice. The training tool of
    mmlape adds this hook to every run. In any config::

        custom_hooks = [dict(type='mmlape.ResumeCheckHook')]
    """

    def before_save_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Record processes, images per process and accumulated steps in the checkpoint's ``meta``."""
        checkpoint.setdefault('meta', {})[_KEY] = _images_per_step(runner)

    def after_load_checkpoint(self, runner: Runner, checkpoint: dict) -> None:
        """Compare with the record, if this is a resumption and there is one."""
        then, now = (checkpoint.get('meta') or {}).get(_KEY), _images_per_step(runner)
        if not _resumes(runner) or then is None or then == now:
            return
        text = f'resumed with {_say(now)}; the checkpoint was trained with {_say(then)}.'
        if _total(then) == _total(now):
            runner.logger.info(f'{text} The product is the same, so rates and schedules fit.')
            return
        text += (
            ' The learning rate and the schedules are those of the checkpoint (--auto-scale-lr does not '
            'reach them) and were made for the other number.'
        )
        if isinstance(runner.train_loop, EpochBasedTrainLoop):
            text += ' Epochs now have another number of iterations, on which warm-up and iterations logged depend.'
        share, rest = divmod(_total(then), now['processes'] * now['accumulated'])
        if not rest:
            text += f' To train as before: --cfg-options train_dataloader.batch_size={share}'
        runner.logger.warning(text)

    def before_train(self, runner: Runner) -> None:
        """Say that there is nothing left to train."""
        loop = runner.train_loop
        done, end, unit = loop.iter, loop.max_iters, 'iterations'
        if isinstance(loop, EpochBasedTrainLoop):
            # A checkpoint of the last iteration was written before its epoch was counted.
            end, unit = loop.max_epochs, 'epochs'
            done = end if done >= loop.max_iters else loop.epoch
        if _resumes(runner) and done >= end:
            runner.logger.warning(
                f'this training is finished ({done} of {end} {unit}): nothing is left to train. To go on, raise '
                f'train_cfg.max_{unit.replace("iterations", "iters")}; to train anew, take another work dir'
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


def _say(record: dict[str, int]) -> str:
    accumulated = f' x {record["accumulated"]} accumulated' if record['accumulated'] != 1 else ''
    return f'{record["processes"]} processes x {record["images"]} images{accumulated} = {_total(record)} per step'
