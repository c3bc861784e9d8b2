"""Hooks that fit a model to its device before it is trained, by upstream's tools too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmlape import cpu, gpu
from mmlape.layers import replace_deformable_attention
from mmlape.registry import HOOKS


class _ChangeHook(Hook):
    """Change the runner's model before a run; weights are loaded afterwards, parameters stay the same objects."""

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)
    change: Callable[[nn.Module], Any]

    def before_run(self, runner: Runner) -> None:
        """Change the model."""
        self.change(runner.model)


@HOOKS.register_module()
class CpuHook(_ChangeHook):
    """Calls :func:`mmlape.cpu.optimize` on the runner's model before a run; without effect on a GPU.

    In a config: ``default_hooks = dict(cpu=dict(type='mmlape.CpuHook'))``.
    """

    change = staticmethod(cpu.optimize)


@HOOKS.register_module()
class GpuHook(_ChangeHook):
    """Calls :func:`mmlape.gpu.optimize` on the runner's model before a run: DTN by Triton kernels.

    Off by default, since it has not been measured on a GPU yet. In a config: ``default_hooks =
    dict(gpu=dict(type='mmlape.GpuHook'))``.
    """

    change = staticmethod(gpu.optimize)


@HOOKS.register_module()
class DeformableAttentionHook(_ChangeHook):
    """Puts our deformable attention into upstream's heads before a run: for GPUs, in bfloat16 most of all.

    Calls :func:`mmlape.layers.replace_deformable_attention` on the runner's model, as ``mmlape.CpuHook`` does on a CPU.
    In a config: ``custom_hooks = [dict(type='mmlape.DeformableAttentionHook')]``.
    """

    change = staticmethod(replace_deformable_attention)


@HOOKS.register_module()
class Bfloat16Hook(_ChangeHook):
    """Gives MMCV's operators float32 in a training in bfloat16, which they do not have: RoIAlign, NMS, focal loss.

    What RoI extractors and focal losses take, and what dense heads (RPN, RetinaNet, ...) return, is cast.
    ``mmlape train --amp-dtype bf16`` adds it. In a config for upstream's tools:
    ``custom_hooks = [dict(type='mmlape.Bfloat16Hook')]``.
    """

    @staticmethod
    def change(model: nn.Module) -> None:
        """Parameters and names stay."""
        for module in model.modules():
            bases = {base.__name__ for base in type(module).__mro__}
            if bases & {'BaseRoIExtractor', 'FocalLoss'}:
                module.register_forward_pre_hook(_cast_arguments, with_kwargs=True)
            if 'BaseDenseHead' in bases:
                module.register_forward_hook(_cast_result)


def _cast_arguments(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    return _float32(args), {name: _float32(value) for name, value in kwargs.items()}


def _cast_result(module: nn.Module, args: tuple, result: Any) -> Any:
    return _float32(result)


def _float32(value: Any) -> Any:
    """Tensors of bfloat16 in float32, also in lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.bfloat16 else value
    return type(value)(map(_float32, value)) if type(value) in (list, tuple) else value
