"""Gabor functions and edge markers: a position embedding with a handful of parameters per channel."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .base import PositionEmbedding

# Widths and wavelengths stay above this, in units of half the image: far below one patch of any usual grid.
FLOOR = 0.02


@MODELS.register_module()
class GaborPosition(PositionEmbedding):
    r"""Gabor functions of the coordinates plus edge markers (Gabor position encoding, eq. 9).

    .. math:: PE(x, y) = g_x(x) W_x + g_y(y) W_y + E W_E + B, \quad
        g(t) = e^{-t^2 / 2 \sigma^2} \cos(2 \pi t / \lambda + \psi)

    Coordinates are continuous, -1 at the first and 1 at the last patch of each axis (0 where there is one patch
    alone), so any grid is served without resizing. Every channel has its own :math:`\sigma, \lambda, \psi` per axis.
    E marks the left, right, top and bottom edge (eq. 8). Width and wavelength are ``0.02 + softplus(parameter)``:
    never zero, with a gradient everywhere.

    Args:
        embed_dims: Channels ``C``.
        grid: Pre-training grid; accepted for uniformity, nothing depends on it.
        num_prefix_tokens: Prefix rows ``P``, learned. Default 0.
        num_tables: Embeddings ``K``. Default 1.
        variant: ``'G+E'`` (default), ``'G'`` or ``'E'``: Gabor functions, edge markers, or both (Table 1).
        with_bias: Have B. Default True.

    Raises:
        ValueError: If the variant is unknown.

    With one prefix token it has 14 (G+E), 10 (G) or 6 (E) parameters per channel, bias included.
    """

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        num_tables: int = 1,
        variant: str = 'G+E',
        with_bias: bool = True,
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        parts = check_option('variant', variant, ('G+E', 'G', 'E')).split('+')
        shape = (self.num_tables, self.embed_dims)
        self.gabor_x = _Gabor(*shape) if 'G' in parts else None
        self.gabor_y = _Gabor(*shape) if 'G' in parts else None
        self.edges = (
            nn.Parameter(0.02 * torch.randn(shape[0], 4, shape[1])) if 'E' in parts else None
        )
        bias = nn.Parameter(torch.zeros(shape[0], 1, shape[1]))
        self.bias = bias if with_bias else None
        self.prefix = nn.Parameter(0.02 * torch.randn(shape[0], self.num_prefix_tokens, shape[1]))

    def forward(self, grid: Grid) -> Tensor:
        """Return ``(K, P + H * W, C)`` for ``grid = (H, W)``."""
        height, width = grid
        nothing = self.prefix.new_zeros(self.num_tables, 1, self.embed_dims)
        along_x, along_y = nothing if self.bias is None else self.bias, nothing
        if self.gabor_x is not None and self.gabor_y is not None:
            along_x = along_x + self.gabor_x(width)
            along_y = along_y + self.gabor_y(height)
        if self.edges is not None:
            left, right, top, bottom = self.edges.split(1, dim=1)
            along_x = along_x + _mark(width, left, right)
            along_y = along_y + _mark(height, top, bottom)
        # Each part depends on one axis, so the map is the sum of a row and a column.
        cells = along_y.expand(-1, height, -1)[:, :, None] + along_x.expand(-1, width, -1)[:, None]
        return torch.cat([self.prefix, cells.flatten(1, 2)], dim=1)


class _Gabor(nn.Module):
    """Weighted Gabor functions of one coordinate, ``(K, C)`` of each parameter."""

    def __init__(self, num_tables: int, channels: int) -> None:
        super().__init__()
        shape = (num_tables, 1, channels)
        # Spread over what learned tables show: from stripes of a few patches to one slope over the image.
        self.raw_width = nn.Parameter(_inverse_softplus(torch.empty(shape).uniform_(0.3, 2.0)))
        self.raw_wavelength = nn.Parameter(
            _inverse_softplus(torch.exp(torch.empty(shape).uniform_(math.log(0.4), math.log(4.0))))
        )
        self.phase = nn.Parameter(torch.empty(shape).uniform_(-math.pi, math.pi))
        self.weight = nn.Parameter(0.02 * torch.randn(shape))

    @property
    def width(self) -> Tensor:
        """Standard deviation of the Gaussian, in units of half the image."""
        return FLOOR + F.softplus(self.raw_width)

    @property
    def wavelength(self) -> Tensor:
        """In units of half the image."""
        return FLOOR + F.softplus(self.raw_wavelength)

    def forward(self, size: int) -> Tensor:
        """``(K, size, C)``."""
        weight = self.weight
        t = _coordinates(size, weight.device, weight.dtype)[:, None]
        envelope = torch.exp(-0.5 * (t / self.width).square())
        return weight * envelope * torch.cos(2 * math.pi * t / self.wavelength + self.phase)


def _coordinates(size: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """-1 to 1; 0 for one patch alone."""
    if size == 1:
        return torch.zeros(1, device=device, dtype=dtype)
    return torch.linspace(-1, 1, size, device=device, dtype=dtype)


def _mark(size: int, first: Tensor, last: Tensor) -> Tensor:
    """``(K, size, C)``: ``first`` at the first cell, ``last`` at the last, their sum where one cell is both."""
    return F.pad(first, (0, 0, 0, size - 1)) + F.pad(last, (0, 0, size - 1, 0))


def _inverse_softplus(values: Tensor) -> Tensor:
    return torch.log(torch.expm1(values - FLOOR))
