"""LayerNorm as a token norm."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.registry import MODELS


@MODELS.register_module()
class LN(nn.LayerNorm):
    """LayerNorm over the channels of each token; it ignores the grid.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-6, the value of ViT, DeiT and ViT-Adapter (PyTorch's own is 1e-5).
    """

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__(num_features, eps=eps)

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Normalise ``(B, N, C)``."""
        return super().forward(tokens)
