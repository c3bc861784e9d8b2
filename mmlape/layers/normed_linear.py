"""Linear layers that a norm follows."""

from __future__ import annotations

import torch
from torch import Tensor

from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm

from .linear import Linear


class PlainLinear(Linear):
    """A linear layer that keeps PyTorch's initial values, whatever others of a network start from: a norm that follows
    sets the scale."""


class NormedLinear(PlainLinear):
    """``norm(W x + b)``, in networks whose norms follow their linear layers (CeiT, LeViT).

    Args:
        in_features: Channels in.
        out_features: Channels out.
        bias: Whether there is ``b``. Default False.
        norm_cfg: Token norm. Default None: ``mmlape.TokenBN``.
        gain: Factor of the initial weight of the norm. Default 1.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        norm_cfg: dict | None = None,
        gain: float = 1.0,
    ) -> None:
        super().__init__(in_features, out_features, bias)
        self.norm = build_token_norm(norm_cfg or dict(type='mmlape.TokenBN'), out_features)
        with torch.no_grad():
            self.norm.weight.mul_(gain)

    def forward(self, tokens: Tensor, layout: Layout | Grid | None = None) -> Tensor:
        """``(B, N, in_features)`` to ``(B, N, out_features)``."""
        return self.norm(super().forward(tokens), layout)
