"""Hooks that were removed: saved configs that name them still build, for one release."""

from __future__ import annotations

from typing import Any

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.registry import HOOKS

__all__ = ['HungProcessHook']


@HOOKS.register_module()
class HungProcessHook(Hook):
    """Does nothing: the timeout of the process group ends a training that hangs (docs/cluster.md).

    Args:
        timeout: Ignored.
    """

    def __init__(self, timeout: Any = None) -> None:
        self.timeout = timeout

    def before_run(self, runner: Runner) -> None:
        """Say it."""
        runner.logger.warning(
            'mmlape.HungProcessHook was removed and does nothing (its timeout has no effect). A hang ends by the '
            'timeout of the process group, env_cfg.dist_cfg.timeout (docs/cluster.md): remove the hook from the config.'
        )
