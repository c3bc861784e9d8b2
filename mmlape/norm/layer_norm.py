"""LayerNorm as a token norm."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_eps, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .token_norm import TokenNorm


@MODELS.register_module()
class LN(TokenNorm, nn.LayerNorm):
    """LayerNorm over the channels of each token, PyTorch's; it ignores the layout.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-6, the value of ViT, DeiT and ViT-Adapter (PyTorch's own is 1e-5).
    """

    extra_repr = nn.LayerNorm.extra_repr

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        check_positive_int('num_features', num_features)
        nn.LayerNorm.__init__(self, num_features, eps=check_eps(eps))
        self.num_features = num_features

    def forward(self, tokens: Tensor, grid: Layout | Grid | None = None) -> Tensor:
        """Normalise ``(B, N, C)``."""
        return nn.LayerNorm.forward(self, tokens)

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return F.layer_norm(x, self.normalized_shape, eps=self.eps)
