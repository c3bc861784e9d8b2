"""Hooks that put faster parts into a model before it is trained, by upstream's tools too."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.cpu import optimize
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
        optimize(runner.model)


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
