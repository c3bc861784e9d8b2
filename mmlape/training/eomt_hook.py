"""Annealing of EoMT's masked attention."""

from __future__ import annotations

from mmengine.hooks import EMAHook, Hook
from mmengine.runner import Runner
from torch import nn

from mmlape.backbones import EoMT
from mmlape.checks import check_number
from mmlape.registry import HOOKS

from .stop_hooks import unwrapped


@HOOKS.register_module()
class MaskAnnealingHook(Hook):
    """Lower the probability of masked attention from 1 to 0, block by block (EoMT, CVPR 2025, section 3.3).

    Training of T iterations has ``num_blocks + 2`` phases of equal length: in the first one all blocks of an
    :class:`~mmlape.backbones.EoMT` are masked, in the next ones the first, second, ... block anneals by
    ``(1 - progress) ** power``, and in the last one nothing is masked. For four blocks these are the steps of the
    paper's COCO schedule. Probabilities are in the checkpoint, so that a test needs no hook. MMEngine's ``EMAHook`` has
    the same ones for its averaged network. In any config::

        custom_hooks = [dict(type='mmlape.MaskAnnealingHook')]

    Args:
        power: Default 0.9, the paper's.

    Raises:
        ValueError: If ``power`` is not positive; before training, if the model has no EoMT.
    """

    priority = 'VERY_HIGH'  # before hooks that copy and save the model

    def __init__(self, power: float = 0.9) -> None:
        self.power = check_number('power', power, above=0)
        self._models: list[EoMT] = []

    def before_train(self, runner: Runner) -> None:
        """Find the networks, and those that ``EMAHook`` averages."""
        self._models = _networks(unwrapped(runner.model))
        if not self._models:
            raise ValueError(
                f'MaskAnnealingHook needs a mmlape.EoMT, the model is a {type(unwrapped(runner.model)).__name__}'
            )
        # With update_buffers, the hook averages the buffer too, which would reach 0 only long after the schedule has.
        # The average of two equal numbers is the same number.
        for hook in runner.hooks:
            if isinstance(hook, EMAHook):
                self._models += _networks(hook.ema_model)

    def before_train_iter(self, runner: Runner, batch_idx: int, data_batch=None) -> None:
        """Set the probabilities of this iteration."""
        self._set(runner.iter / runner.max_iters)

    def after_train_iter(
        self, runner: Runner, batch_idx: int, data_batch=None, outputs=None
    ) -> None:
        """Set the masks of the next iteration, which is what evaluation sees."""
        self._set((runner.iter + 1) / runner.max_iters)

    def _set(self, share: float) -> None:
        for model in self._models:
            model.set_mask_probs(mask_probs(share, model.num_blocks, self.power))


def _networks(model: nn.Module) -> list[EoMT]:
    return [module for module in model.modules() if isinstance(module, EoMT)]


def mask_probs(share: float, num_blocks: int, power: float = 0.9) -> list[float]:
    """Probabilities of all blocks after a ``share`` of the training, 0 to 1."""
    phase = share * (num_blocks + 2) - 1
    return [(1 - min(max(phase - block, 0), 1)) ** power for block in range(num_blocks)]
