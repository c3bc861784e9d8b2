"""Safe loading in runs of upstream's tools."""

from __future__ import annotations

from mmengine.hooks import Hook
from mmengine.runner import Runner

from mmlape.checkpoints.loaders import safe_loading
from mmlape.registry import HOOKS


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
