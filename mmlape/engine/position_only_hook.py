"""Training position alone, in any model and toolbox."""

from __future__ import annotations

from typing import cast

from mmengine.hooks import Hook
from mmengine.model import MMDistributedDataParallel, is_model_wrapper
from mmengine.runner import BaseLoop, Runner
from torch import nn

from mmlape.backbones.position_only import (
    freeze_all_but_position,
    hold_statistics,
    statistics_of,
)
from mmlape.registry import HOOKS

__all__ = ['PositionOnlyHook']


@HOOKS.register_module()
class PositionOnlyHook(Hook):
    """Train position alone (Gabor position encoding, section 3.3): everything else keeps its values, to the bit.

    Position is what the stages of our backbones name: embeddings and their joining (LaPE's norms too), and what is
    inside the attention. All other parameters, those of necks and heads too, get no gradient, and running statistics
    are not updated. Dropout and stochastic depth stay as they are configured: they regularise position as well, and the
    paper's recipe has them. In any config::

        custom_hooks = [dict(type='mmlape.PositionOnlyHook')]

    Nothing has to be said about several GPUs: parameters that are frozen wait for no gradient. An average of weights,
    mixed precision, recomputation and resuming go as ever; a run that resumes needs the hook too.

    Raises:
        ValueError: From the runner's ``train``: if the model has no backbone of ours, no position with parameters, or
            one that ``frozen_stages`` has frozen; or if it is wrapped by anything but
            ``MMDistributedDataParallel`` (FSDP lays parameters together before they can be told apart).
    """

    # Before anything is derived from the model, such as an average of its weights.
    priority = 'VERY_HIGH'

    def __init__(self) -> None:
        self._held: list[nn.Module] = []

    def before_run(self, runner: Runner) -> None:
        """Freeze, before weights are initialised and loaded; tests are left alone."""
        if not isinstance(runner._train_loop, BaseLoop):
            return
        model, wrapped = runner.model, is_model_wrapper(runner.model)
        if wrapped and not (
            isinstance(model, MMDistributedDataParallel) and isinstance(runner, Runner)
        ):
            raise ValueError(
                'PositionOnlyHook works with MMDistributedDataParallel of the ordinary runner, got '
                f'{type(model).__name__} of {type(runner).__name__}'
            )
        plain = cast(nn.Module, model.module) if wrapped else model
        trained = freeze_all_but_position(plain)
        self._held = statistics_of(plain)
        if wrapped:  # it has counted on a gradient of every parameter
            runner.model = runner.wrap_model(runner.cfg.get('model_wrapper_cfg'), plain)
        values = sum(plain.get_parameter(name).numel() for name in trained)
        runner.logger.info(
            f'PositionOnlyHook: {len(trained)} tensors of {values} values are trained ({trained[0]}, ...), '
            'everything else is frozen'
        )

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        """Hold running statistics, whatever has called ``train()`` since."""
        hold_statistics(self._held)
