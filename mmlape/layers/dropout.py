"""Dropout that costs nothing where nothing is dropped, and stochastic depth."""

from __future__ import annotations

import timm.layers
import torch
from torch import Tensor, nn

from mmlape.checks import check_rate


def build_dropout(name: str, rate: float) -> nn.Module:
    """``nn.Dropout(rate)``, or ``nn.Identity()`` for a rate of 0, which is cheaper to call in every layer.

    Args:
        name: The option's name, for messages.
        rate: Probability of dropping a value, in [0, 1).

    Raises:
        TypeError: If the rate is no number.
        ValueError: If it is out of range.
    """
    return nn.Dropout(rate) if check_rate(name, rate) else nn.Identity()


class DropPath(timm.layers.DropPath):
    """timm's stochastic depth; in a graph its rate is an input, so that blocks of several rates share one."""

    def forward(self, branch: Tensor) -> Tensor:
        """``branch`` ``(B, ...)``, of which images are dropped in training, and the others scaled up."""
        if not (self.training and torch.compiler.is_compiling()):
            return super().forward(branch)
        keep = 1 - self.drop_prob
        shape = (branch.shape[0], *[1] * (branch.ndim - 1))
        drawn = torch.rand(shape, device=branch.device) + keep
        return branch * ((drawn >= 1) / keep).to(branch.dtype)
