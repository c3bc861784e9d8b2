"""The norms that the LaPE paper takes apart (ICCV 2023, Table 8): what each layer does to its position."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class RowNorm(nn.LayerNorm):
    """LayerNorm of rows that may be constant: the gradients of those with a variance below ``eps`` are as if they were
    centred alone. Dividing them by their standard deviation makes gradients ``1 / sqrt(eps)`` times as large."""

    def forward(self, rows: Tensor) -> Tensor:
        """``(1, N, C)`` to the same shape."""
        if not rows.requires_grad:
            return super().forward(rows)
        return _RowNorm.apply(rows, self.weight, self.bias, self.eps)[0]


class _RowNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(rows: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        return torch.native_layer_norm(rows, rows.shape[-1:], weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        rows, weight, bias, ctx.eps = inputs
        _, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.save_for_backward(rows, weight, bias, mean, rstd)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, bias, mean, rstd = ctx.saved_tensors
        rstd = rstd.masked_fill(rstd > (2 * ctx.eps) ** -0.5, 1)
        gradients = torch.ops.aten.native_layer_norm_backward(
            gradient, rows, rows.shape[-1:], mean, rstd, weight, bias, ctx.needs_input_grad[:3]
        )
        return *gradients, None


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
        self.norm = RowNorm(embed_dims, eps=eps, elementwise_affine=False) if normalise else None
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
    'norm_channel_gain_bias': lambda dims, eps: RowNorm(dims, eps=eps),
}
