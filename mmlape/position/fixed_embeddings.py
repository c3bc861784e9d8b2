"""Position embeddings by a formula: sinusoids, Gabor and edge markers, none."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.layout import Grid, cached, centres
from mmlape.registry import MODELS

from .embeddings import PositionEmbedding, resize_table

BASE = 10000.0


class FixedPosition(PositionEmbedding):
    """An embedding without parameters, on the device and in the dtype of its network."""

    _like: Tensor

    def __init__(
        self, embed_dims: int, grid: Grid, num_prefix_tokens: int = 0, num_tables: int = 1
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        self.register_buffer('_like', torch.empty(0), persistent=False)

    def rows(self, grid: Grid) -> Tensor:
        """The embedding of ``grid`` as ``(P + H * W, C)``, float32, on any device."""
        raise NotImplementedError

    def forward(self, grid: Grid) -> Tensor:
        """Return ``(1, P + H * W, C)``: all tables are the same."""
        height, width = grid
        return self.rows((height, width)).to(self._like).unsqueeze(0)


@MODELS.register_module()
class NoPosition(FixedPosition):
    """All zeros: no position."""

    def rows(self, grid: Grid) -> Tensor:
        """Zeros ``(P + H * W, C)``."""
        num_rows = self.num_prefix_tokens + grid[0] * grid[1]
        return self._like.new_zeros(num_rows, self.embed_dims)


@MODELS.register_module()
class SinusoidalPosition(FixedPosition):
    """Fixed sinusoids with base 10000, sine and cosine interleaved (Transformer, NeurIPS 2017; LaPE, ICCV 2023, Table
    7).

    Args:
        embed_dims, grid, num_prefix_tokens, num_tables: As in :class:`PositionEmbedding`; ``C`` must be a multiple of
            ``2 * axes``.
        axes: 1 (default): the index in the sequence, prefix tokens first; 2: the column in the first half of the
            channels and the row in the second, zeros for prefix tokens.
        other_grids: ``'extrapolate'`` (default): count on in the grid at hand; ``'resize'``: resize the table of the
            pre-training grid bicubically.

    Raises:
        ValueError: If an option is unknown, or ``C`` cannot be split into pairs on each axis.
    """

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        num_tables: int = 1,
        axes: int = 1,
        other_grids: str = 'extrapolate',
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        self.axes = check_option('axes', axes, (1, 2))
        self.other_grids = check_option('other_grids', other_grids, ('extrapolate', 'resize'))
        if embed_dims % (2 * axes):
            raise ValueError(f'embed_dims must be a multiple of {2 * axes}, got {embed_dims}')

    def rows(self, grid: Grid) -> Tensor:
        """Sinusoids ``(P + H * W, C)``."""
        made_for = grid if self.other_grids == 'extrapolate' else self.grid
        sizes = (self.num_prefix_tokens, self.embed_dims)
        table = _sinusoid_table(self.axes, made_for, *sizes, self._like.device)
        if made_for == grid:
            return table
        prefix, cells = table.tensor_split([self.num_prefix_tokens])
        return torch.cat([prefix, resize_table(cells[None], self.grid, grid)[0]])


def _sinusoids(positions: Tensor, channels: int) -> Tensor:
    """``(N,)`` positions to ``(N, channels)``; channel pairs (sine, cosine) of falling frequency."""
    exponents = (
        torch.arange(0, channels, 2, device=positions.device, dtype=torch.float64) / channels
    )
    angles = positions.double()[:, None] / BASE**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


@cached
def _sinusoid_table(
    axes: int, grid: Grid, num_prefix: int, channels: int, device: torch.device
) -> Tensor:
    height, width = grid
    if axes == 1:
        return _sinusoids(torch.arange(num_prefix + height * width, device=device), channels)
    columns = _sinusoids(torch.arange(width, device=device), channels // 2)
    rows = _sinusoids(torch.arange(height, device=device), channels // 2)
    cells = torch.cat([columns.repeat(height, 1), rows.repeat_interleave(width, 0)], dim=1)
    return torch.cat([cells.new_zeros(num_prefix, channels), cells])


# Widths and wavelengths stay above this, in units of half the image: far below one patch of any usual grid.
FLOOR = 0.02


@MODELS.register_module()
class GaborPosition(PositionEmbedding):
    r"""Gabor functions of the coordinates plus edge markers (Gabor position encoding, eq. 9).

    .. math:: PE(x, y) = g_x(x) W_x + g_y(y) W_y + E W_E + B, \quad
        g(t) = e^{-t^2 / 2 \sigma^2} \cos(2 \pi t / \lambda + \psi)

    Coordinates are continuous, -1 at the first and 1 at the last patch of each axis (0 for a single
    patch), so other grids need no resizing. Every channel has its own :math:`\sigma, \lambda, \psi` per axis.
    E marks the left, right, top and bottom edge (eq. 8). Width and wavelength are ``0.02 + softplus(parameter)``:
    never zero, with a gradient everywhere.

    Args:
        embed_dims, grid, num_prefix_tokens, num_tables: As in :class:`PositionEmbedding`; prefix rows are learned.
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
        self.bias = nn.Parameter(torch.zeros(shape[0], 1, shape[1])) if with_bias else None
        self.prefix = nn.Parameter(0.02 * torch.randn(shape[0], self.num_prefix_tokens, shape[1]))

    def forward(self, grid: Grid, within: Grid | None = None) -> Tensor:
        """Return ``(K, P + H * W, C)`` for ``grid = (H, W)``, whose cells are parts of the grid ``within`` (default:
        its own cells): the coordinates of their centres there."""
        height, width = grid
        rows, columns = grid if within is None else within
        nothing = self.prefix.new_zeros(self.num_tables, 1, self.embed_dims)
        along_x, along_y = nothing if self.bias is None else self.bias, nothing
        if self.gabor_x is not None and self.gabor_y is not None:
            along_x = along_x + self.gabor_x(width, columns)
            along_y = along_y + self.gabor_y(height, rows)
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
        # The range that learned tables show: from stripes of a few patches to one slope over the image.
        self.raw_width = nn.Parameter(_inverse_softplus(torch.empty(shape).uniform_(0.3, 2.0)))
        self.raw_wavelength = nn.Parameter(
            _inverse_softplus(torch.exp(torch.empty(shape).uniform_(math.log(0.4), math.log(4.0))))
        )
        self.phase = nn.Parameter(torch.empty(shape).uniform_(-math.pi, math.pi))
        self.weight = nn.Parameter(0.02 * torch.randn(shape))

    @property
    def width(self) -> Tensor:
        """Standard deviation of the Gaussian, in units of half the image."""
        return FLOOR + F.softplus(self._wide(self.raw_width))

    @property
    def wavelength(self) -> Tensor:
        """Wavelengths in units of half the image."""
        return FLOOR + F.softplus(self._wide(self.raw_wavelength))

    def forward(self, size: int, extent: int) -> Tensor:
        """``(K, size, C)`` for equal parts of an axis of ``extent`` cells."""
        weight = self._wide(self.weight)
        t = _coordinates(size, extent, weight.device, weight.dtype)[:, None]
        envelope = torch.exp(-0.5 * (t / self.width).square())
        angle = 2 * math.pi * t / self.wavelength + self._wide(self.phase)
        return (weight * envelope * torch.cos(angle)).to(self.weight.dtype)

    def _wide(self, parameter: Tensor) -> Tensor:
        """Convert to float32 at least: half precision has too few digits for angles."""
        return parameter.to(torch.promote_types(parameter.dtype, torch.float32))


def _coordinates(size: int, extent: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """-1 at the first and 1 at the last of ``extent`` cells, at the centres of ``size`` equal parts of the axis; 0 for
    a single cell."""
    if extent == 1:
        return torch.zeros(size, device=device, dtype=dtype)
    if size == extent:
        return torch.linspace(-1, 1, size, device=device, dtype=dtype)
    return (2 / (extent - 1) * centres(size, extent, device) - 1).to(dtype)


def _mark(size: int, first: Tensor, last: Tensor) -> Tensor:
    """``(K, size, C)``: ``first`` at the first cell, ``last`` at the last, their sum where one cell is both."""
    return F.pad(first, (0, 0, 0, size - 1)) + F.pad(last, (0, 0, size - 1, 0))


def _inverse_softplus(values: Tensor) -> Tensor:
    return torch.log(torch.expm1(values - FLOOR))
