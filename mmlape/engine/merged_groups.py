"""As few groups of parameters as there are settings."""

from __future__ import annotations

from typing import Any

from mmengine.optim import DefaultOptimWrapperConstructor
from torch import nn

from mmlape.registry import OPTIM_WRAPPER_CONSTRUCTORS

__all__ = ['MergedGroupsOptimizerConstructor']


@OPTIM_WRAPPER_CONSTRUCTORS.register_module()
class MergedGroupsOptimizerConstructor(DefaultOptimWrapperConstructor):
    """MMEngine's default with one group of parameters for all that have the same settings, not one for each tensor.

    With a ``paramwise_cfg``, MMEngine makes a group for every tensor, hundreds, and optimizers go through groups one by
    one: what they do to many tensors at once (``foreach``, PyTorch's default on GPUs, and ``fused``) is done to one at
    a time, and learning rates are scheduled hundreds of times per step. Here each tensor gets the same update in fewer
    calls. In a config::

        optim_wrapper = dict(
            type='OptimWrapper',
            optimizer=dict(type='AdamW', lr=1e-4, weight_decay=0.05, fused=True),
            constructor='mmlape.MergedGroupsOptimizerConstructor',
            paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0))

    A state of an optimizer goes with its groups: a training that began with MMEngine's constructor is resumed with
    MMEngine's; PyTorch refuses it here (``different number of parameter groups``).

    Args:
        optim_wrapper_cfg: The config of the optimizer wrapper.
        paramwise_cfg: As in MMEngine. Default none, which is one group there, too.
    """

    def add_params(
        self, params: list[dict], module: nn.Module, prefix: str = '', **options: Any
    ) -> None:
        """Append the groups of ``module`` to ``params``; those of the whole model (no ``prefix``) are merged."""
        super().add_params(params, module, prefix, **options)
        tensors = {id(parameter) for group in params for parameter in group['params']}
        # PyTorch refuses a tensor that is in two groups, and only warns where it is twice in one.
        if not prefix and len(tensors) == len(params):
            params[:] = _merged(params)


def _merged(groups: list[dict]) -> list[dict]:
    """Groups in the order in which their settings come first; so are the tensors in them."""
    merged: dict[str, dict] = {}
    for group in groups:
        settings = {name: value for name, value in group.items() if name != 'params'}
        same = merged.setdefault(repr(sorted(settings.items())), {'params': [], **settings})
        same['params'] += group['params']
    return list(merged.values())
