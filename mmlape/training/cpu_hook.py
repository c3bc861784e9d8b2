"""``mmlape.cpu.optimize`` as a hook, for trainings by upstream's tools."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.cpu import optimize
from mmlape.registry import HOOKS


@HOOKS.register_module()
class CpuHook(Hook):
    """Calls :func:`mmlape.cpu.optimize` on the runner's model before a run; without effect on a GPU.

    In a config: ``default_hooks = dict(cpu=dict(type='mmlape.CpuHook'))``.
    """

    # Before hooks that copy the model (EMA).
    priority = 'VERY_HIGH'

    def before_run(self, runner: Runner) -> None:
        """Weights are loaded afterwards; parameters stay the same objects."""
        optimize(runner.model)
