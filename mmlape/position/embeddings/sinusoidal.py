"""Fixed embeddings: sinusoids along the sequence or along both axes, and none at all."""

from __future__ import annotations

import torch
from torch import Tensor

from mmlape.checks import check_option
from mmlape.kept import kept
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .base import PositionEmbedding, resize_table

BASE = 10000.0


class FixedPosition(PositionEmbedding):
    """An embedding without parameters; it follows the device and dtype of the network that holds it."""

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
        """Return ``(1, P + H * W, C)``: what is fixed is the same for all tables."""
        height, width = grid
        return self.rows((height, width)).to(self._like).unsqueeze(0)


@MODELS.register_module()
class NoPosition(FixedPosition):
    """All zeros: a network that does not know where its tokens are."""

    def rows(self, grid: Grid) -> Tensor:
        """Zeros ``(P + H * W, C)``."""
        num_rows = self.num_prefix_tokens + grid[0] * grid[1]
        return self._like.new_zeros(num_rows, self.embed_dims)


@MODELS.register_module()
class SinusoidalPosition(FixedPosition):
    """Fixed sinusoids with base 10000, sine and cosine interleaved (Transformer, NeurIPS 2017; LaPE, ICCV 2023, Table
    7).

    Args:
        embed_dims: Channels ``C``; even, for ``axes=2`` a multiple of 4.
        grid: Pre-training grid ``(H0, W0)``; it matters for ``other_grids='resize'`` alone.
        num_prefix_tokens: Prefix tokens ``P``. Along the sequence they are its first positions; along two axes they
            have no place, so their rows are zero. Default 0.
        num_tables: Accepted for joining methods that ask for several; all are the same. Default 1.
        axes: 1 (default): the index in the sequence; 2: the column in the first half of the channels and the row in
            the second.
        other_grids: ``'extrapolate'`` (default): count on in the grid at hand; ``'resize'``: resize the table of the
            pre-training grid bicubically.

    Raises:
        ValueError: If an option is unknown, or ``embed_dims`` cannot be split into pairs on each axis.
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
        self.axes = check_option('axes', axes, _TABLES)
        self.other_grids = check_option('other_grids', other_grids, ('extrapolate', 'resize'))
        if embed_dims % (2 * axes):
            raise ValueError(f'embed_dims must be a multiple of {2 * axes}, got {embed_dims}')

    def rows(self, grid: Grid) -> Tensor:
        """Sinusoids ``(P + H * W, C)``."""
        table = _TABLES[self.axes]
        if self.other_grids == 'extrapolate':
            return table(grid, self.num_prefix_tokens, self.embed_dims, self._like.device)
        stored = table(self.grid, self.num_prefix_tokens, self.embed_dims, self._like.device)
        prefix, cells = stored.tensor_split([self.num_prefix_tokens])
        return torch.cat([prefix, resize_table(cells[None], self.grid, grid)[0]])


def _sinusoids(positions: Tensor, channels: int) -> Tensor:
    """``(N,)`` positions to ``(N, channels)``; channel pairs (sine, cosine) of falling frequency."""
    exponents = (
        torch.arange(0, channels, 2, device=positions.device, dtype=torch.float64) / channels
    )
    angles = positions.double()[:, None] / BASE**exponents
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1).float()


@kept
def _along_sequence(grid: Grid, num_prefix: int, channels: int, device: torch.device) -> Tensor:
    positions = torch.arange(num_prefix + grid[0] * grid[1], device=device)
    return _sinusoids(positions, channels)


@kept
def _along_both_axes(grid: Grid, num_prefix: int, channels: int, device: torch.device) -> Tensor:
    height, width = grid
    columns = _sinusoids(torch.arange(width, device=device), channels // 2)
    rows = _sinusoids(torch.arange(height, device=device), channels // 2)
    cells = torch.cat([columns.repeat(height, 1), rows.repeat_interleave(width, 0)], dim=1)
    return torch.cat([cells.new_zeros(num_prefix, channels), cells])


_TABLES = {1: _along_sequence, 2: _along_both_axes}
