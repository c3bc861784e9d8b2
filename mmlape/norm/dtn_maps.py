"""DTN's position map P as a product of a row and a column softmax, and the cells that it weighs.

B batch, H x W tokens, A x E cells of pool x pool tokens, G heads, D channels per head
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position.gabor_attention import QuadraticScores, axis_offsets


class LearnedMap(QuadraticScores):
    """DTN's map with a learned ``a`` per head (eq. 6): the softmax of
    :class:`~mmlape.position.gabor_attention.QuadraticScores`, which has its parameters and initial values."""

    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """``P_y`` ``(G, H, H)`` and ``P_x`` ``(G, W, W)`` of ``(H, W)`` cells; every row sums to one."""
        rows, columns = self.along_axes(grid, grid, device, dtype)
        return rows.softmax(dim=-1), columns.softmax(dim=-1)


class BandedMap(nn.Module):
    """Equal weights of the ``band x band`` cells around a cell, cut at the borders: local InstanceNorm (Fig. 4).

    On a sequence, ``grid = (1, T)``, it is the paper's k-banded matrix with k = ``band``, which must be odd.
    """

    def __init__(self, band: int) -> None:
        super().__init__()
        self.band = check_positive_int('band', band)
        if band % 2 == 0:
            raise ValueError(f'band must be odd (a cell is in the middle of its band), got {band}')

    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """``(1, H, H)`` and ``(1, W, W)``."""
        rows, columns = (self._axis(length, device, dtype) for length in grid)
        return rows, columns

    def _axis(self, length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        offsets = axis_offsets(length, length, device, dtype)[:1]
        inside = (offsets.abs() <= self.band // 2).to(dtype)
        return inside / inside.sum(dim=-1, keepdim=True)


class UniformMap(BandedMap):
    """Equal weights of all cells: inter-token statistics are those of InstanceNorm (eq. 3)."""

    def __init__(self) -> None:
        super().__init__(band=2**31 - 1)


class Windows(NamedTuple):
    """Cells of ``pool x pool`` tokens, or fewer at the bottom and right where ``pool`` does not divide the grid.

    Where every cell is full, tokens are viewed as ``(B, A, pool, E, pool, ...)`` and values per cell broadcast. If not,
    and in graphs of ``torch.compile``, which are for grids of all sizes, the view is ``(B, H, W, ...)`` and values go
    from and to cells by products with small matrices.

    Attributes:
        grid: ``(H, W)`` tokens.
        pool: Tokens per side of a cell.
        cells: ``(A, E)`` of the pooled grid.
        by_products: Cells may hold fewer tokens.
    """

    grid: Grid
    pool: int
    cells: Grid
    by_products: bool

    @classmethod
    def of(cls, layout: Layout, pool: int) -> Windows:
        """Cut the grid of ``layout`` into cells."""
        grid = layout.grid
        if pool == 1:
            return cls(grid, pool, grid, False)
        cut = torch.compiler.is_compiling() or grid[0] % pool > 0 or grid[1] % pool > 0
        return cls(grid, pool, layout.pooled(pool), cut)

    def view(self, tokens: Tensor) -> Tensor:
        """``(B, H * W, ...)`` as a tensor with which results of :meth:`spread` broadcast."""
        if self.pool == 1 or self.by_products:
            return tokens.unflatten(1, self.grid)
        (rows, columns), pool = self.cells, self.pool
        return tokens.unflatten(1, (rows, pool, columns, pool))

    def mean(self, view: Tensor, total: bool = False) -> Tensor:
        """Mean (or ``total``) over the tokens of each cell of a :meth:`view`, ``(B, A, E, ...)``."""
        if self.pool == 1:
            return view
        if not self.by_products:
            return view.sum(dim=(2, 4)) if total else view.mean(dim=(2, 4))
        rows, columns = self._members(view)
        if not total:
            rows, columns = (of / of.sum(dim=1, keepdim=True) for of in (rows, columns))
        return _along_columns(columns, _along_rows(rows, view))

    def spread(self, cells: Tensor) -> Tensor:
        """Values per cell ``(B, A, E, ...)`` at its tokens: a tensor that broadcasts with a :meth:`view`."""
        if self.pool == 1:
            return cells
        if not self.by_products:
            return cells.unsqueeze(2).unsqueeze(4)
        rows, columns = self._members(cells)
        return _along_rows(rows.mT, _along_columns(columns.mT, cells))

    def _members(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """1 where a token is in a cell, along each axis: ``(A, H)`` and ``(E, W)``."""
        rows, columns = (
            torch.arange(cells, device=like.device)[:, None]
            == torch.arange(side, device=like.device) // self.pool
            for cells, side in zip(self.cells, self.grid)
        )
        return rows.to(like.dtype), columns.to(like.dtype)


def _along_rows(weights: Tensor, maps: Tensor) -> Tensor:
    """``weights`` ``(I, H)`` times ``(B, H, W, ...)``: ``(B, I, W, ...)``."""
    batch, cells = maps.shape[0], weights.shape[0]
    product = torch.bmm(weights.expand(batch, -1, -1), maps.flatten(2))
    return product.view(batch, cells, *maps.shape[2:])


def _along_columns(weights: Tensor, maps: Tensor) -> Tensor:
    """``weights`` ``(J, W)`` times ``(B, H, W, ...)``: ``(B, H, J, ...)``."""
    rows = maps.flatten(0, 1)
    product = torch.bmm(weights.expand(rows.shape[0], -1, -1), rows.flatten(2))
    return product.view(*maps.shape[:2], weights.shape[0], *maps.shape[3:])
