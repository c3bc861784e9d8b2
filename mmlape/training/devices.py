"""Hooks that fit a model to its device before it is trained, by upstream's tools too."""

from __future__ import annotations

from typing import Any

import torch
from mmengine.hooks import Hook
from mmengine.runner import Runner
from torch import nn

from mmlape import cpu, gpu
from mmlape.layers import replace_deformable_attention
from mmlape.registry import HOOKS


@HOOKS.register_module()
class CpuHook(Hook):
    """Calls :func:`mmlape.cpu.optimize` on the runner's model before a run; without effect on a GPU.

    In a config: ``default_hooks = dict(cpu=dict(type='mmlape.CpuHook'))``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        cpu.optimize(runner.model)


@HOOKS.register_module()
class GpuHook(Hook):
    """Calls :func:`mmlape.gpu.optimize` on the runner's model before a run: DTN by Triton kernels.

    Off by default, since it has not been measured on a GPU yet. In a config: ``default_hooks =
    dict(gpu=dict(type='mmlape.GpuHook'))``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        gpu.optimize(runner.model)


@HOOKS.register_module()
class DeformableAttentionHook(Hook):
    """Puts our deformable attention into upstream's heads before a run: for GPUs, in bfloat16 most of all.

    Calls :func:`mmlape.layers.replace_deformable_attention` on the runner's model, as ``mmlape.CpuHook`` does on a CPU.
    In a config: ``custom_hooks = [dict(type='mmlape.DeformableAttentionHook')]``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        replace_deformable_attention(runner.model)


@HOOKS.register_module()
class Bfloat16Hook(Hook):
    """Gives MMCV's operators float32 in a training in bfloat16, which they do not have: RoIAlign, NMS, focal loss.

    What RoI extractors and focal losses take, and what dense heads (RPN, RetinaNet, ...) return, is cast.
    ``mmlape train --amp-dtype bf16`` adds it. In a config for upstream's tools:
    ``custom_hooks = [dict(type='mmlape.Bfloat16Hook')]``.
    """

    priority = 'VERY_HIGH'  # before hooks that copy the model (EMA)

    def before_run(self, runner: Runner) -> None:
        """Parameters and names stay."""
        for module in runner.model.modules():
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
