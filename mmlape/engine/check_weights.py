"""A checkpoint is the model's, whole, or the run stops: metrics of random weights look like metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.model import BaseTTAModel, is_model_wrapper
from mmengine.runner import BaseLoop, Runner

from mmlape.checkpoints.errors import CheckpointError
from mmlape.checkpoints.matching import listed, match, misfits, problems_of
from mmlape.checkpoints.report import LoadReport
from mmlape.checks import check_bool
from mmlape.registry import HOOKS

__all__ = ['CheckWeightsHook']

# Below this share of the values, a checkpoint to start from is that of something else.
_LEAST = 0.05
_BACKBONE = 'backbone.'
_LOOSEN = '--allow-partial (CheckWeightsHook.allow_partial) takes what fits'


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
        file = str(runner._load_from or 'the last checkpoint')
        resumes = bool(runner._resume)
        state = checkpoint.get('state_dict', checkpoint)
        report = match(runner.model, state, Path(file).name)
        report.whole = any(name.startswith(_BACKBONE) for name in report.sizes)
        if resumes:
            report.problems += _problems_of_a_training(checkpoint, state)
        trains = isinstance(runner._train_loop, BaseLoop)
        partial = self.allow_partial or (trains and not resumes)
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
