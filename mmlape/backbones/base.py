"""What every backbone shares: weights from elsewhere are loaded last, and frozen parts stay frozen."""

from __future__ import annotations

from mmengine.model import BaseModule, initialize
from torch import nn


class Backbone(BaseModule):
    """MMEngine's ``BaseModule`` with two guarantees.

    * ``init_cfg`` is applied after the children have initialised themselves. MMEngine does so for its own
      ``Pretrained`` only; ``mmlape.Pretrained`` would be overwritten by children that initialise themselves.
    * The modules that :meth:`frozen_modules` names have no gradient and stay in eval mode through ``train()``.
    """

    def frozen_modules(self) -> list[nn.Module]:
        """Modules that are not trained. Default none."""
        return []

    def freeze(self) -> None:
        """Switch gradients off for :meth:`frozen_modules`; to be called at the end of a constructor."""
        for module in self.frozen_modules():
            module.requires_grad_(False)

    def init_weights(self) -> None:
        """Initialise the children, then apply ``init_cfg``."""
        init_cfg, self.init_cfg = self.init_cfg, None
        first_call = not self.is_init
        super().init_weights()
        self.init_cfg = init_cfg
        if init_cfg and first_call:
            initialize(self, init_cfg)

    def train(self, mode: bool = True) -> Backbone:
        """Switch between training and evaluation; frozen modules stay in evaluation mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        return self
