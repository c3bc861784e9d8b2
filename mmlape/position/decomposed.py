"""The norms that the LaPE paper takes apart (ICCV 2023, Table 8): what each layer does to its position."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class PositionNorm(nn.Module):
    """``scale * Norm(w) + shift`` with any of its parts.

    Args:
        embed_dims: Channels ``C``.
        normalise: Normalise each row over its channels.
        gain: Size of the scale: 0 for none, 1 for a scalar, ``C`` for one per channel.
        bias: Add a bias per channel.
        eps: Added to the variance.
    """

    def __init__(self, embed_dims: int, normalise: bool, gain: int, bias: bool, eps: float) -> None:
        super().__init__()
        self.norm = (
            nn.LayerNorm(embed_dims, eps=eps, elementwise_affine=False) if normalise else None
        )
        self.weight = nn.Parameter(torch.ones(gain)) if gain else None
        self.bias = nn.Parameter(torch.zeros(embed_dims)) if bias else None

    def forward(self, position: Tensor) -> Tensor:
        """``(1, N, C)`` to the same shape."""
        if self.norm is not None:
            position = self.norm(position)
        if self.weight is not None:
            position = position * self.weight
        return position if self.bias is None else position + self.bias


def _part(normalise: bool, gain: str | None = None, bias: bool = False):
    sizes = {None: lambda dims: 0, 'scalar': lambda dims: 1, 'channel': lambda dims: dims}
    return lambda dims, eps: PositionNorm(dims, normalise, sizes[gain](dims), bias, eps)


# The rows of Table 8 by name, the last being LaPE itself.
POSITION_NORMS = {
    'identity': _part(False),
    'scalar_gain': _part(False, 'scalar'),
    'channel_gain': _part(False, 'channel'),
    'channel_gain_bias': _part(False, 'channel', bias=True),
    'norm': _part(True),
    'norm_scalar_gain': _part(True, 'scalar'),
    'norm_channel_gain': _part(True, 'channel'),
    'norm_channel_gain_bias': lambda dims, eps: nn.LayerNorm(dims, eps=eps),
}
