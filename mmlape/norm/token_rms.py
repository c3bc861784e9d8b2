"""RMSNorm: tokens divided by the root of the mean of their squares."""

from __future__ import annotations

from torch import Tensor

from mmlape.registry import MODELS

from .token_norm import TokenNorm


@MODELS.register_module()
class TokenRMS(TokenNorm):
    """RMSNorm (NeurIPS 2019) over the channels of each token: ``weight x / sqrt(mean(x^2) + eps)``, without a bias.

    Args:
        num_features: Channels ``C``.
        eps: Added to the mean square. Default 1e-6.

    Raises:
        ValueError: If ``num_features`` or ``eps`` is not positive.
    """

    _abbr_ = 'rms'

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__(num_features, eps)
        self.register_parameter('bias', None)

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
