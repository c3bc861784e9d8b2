"""A grid of tokens seen as cells of ``pool x pool`` tokens, at any grid size.

B batch, H x W tokens, A x E cells, p x q tokens per cell in the view, ... trailing dimensions (heads, channels)
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.layout import Grid


class Windows(NamedTuple):
    """How a grid is cut into cells; cells at the bottom and right hold fewer tokens where it is no multiple of
    ``pool``.

    Full-size tensors are handled as views ``(B, A, p, E, q, ...)``. Where the grid is a multiple of ``pool``,
    ``p = q = pool`` and a value per cell reaches its tokens by broadcasting. Elsewhere ``p = q = 1``, ``A x E = H x
    W``, and it is repeated.

    Attributes:
        grid: ``(H, W)`` tokens.
        pool: Tokens per side of a cell.
    """

    grid: Grid
    pool: int

    @property
    def cells(self) -> tuple[int, int]:
        """``(A, E)`` of the pooled grid."""
        height, width = self.grid
        return (height + self.pool - 1) // self.pool, (width + self.pool - 1) // self.pool

    @property
    def is_even(self) -> bool:
        """Whether every cell is full."""
        return not (self.grid[0] % self.pool or self.grid[1] % self.pool)

    def view(self, tokens: Tensor) -> Tensor:
        """``(B, H * W, ...)`` as ``(B, A, p, E, q, ...)``."""
        size = self.pool if self.is_even else 1
        height, width = self.grid
        # not unflatten, whose Python alone takes longer
        cells = (height // size, size, width // size, size)
        return tokens.view(tokens.shape[0], *cells, *tokens.shape[2:])

    def mean(self, tokens: Tensor) -> Tensor:
        """Mean over the tokens of each cell: ``(B, H * W, ...)`` to ``(B, A, E, ...)``."""
        return self._pool(tokens, None)

    def sum(self, tokens: Tensor) -> Tensor:
        """Sum over the tokens of each cell, adjoint of :meth:`spread`: ``(B, H * W, ...)`` to ``(B, A, E, ...)``."""
        return self._pool(tokens, 1)

    def spread(self, cells: Tensor) -> Tensor:
        """Values per cell ``(B, A, E, ...)`` for its tokens: a tensor that broadcasts with a view."""
        if not self.is_even:
            for dim, side in enumerate(self.grid, start=1):
                # repeat_interleave, in a form that serves symbolic sides of a compiled graph
                repeats = [self.pool if axis == dim + 1 else -1 for axis in range(cells.ndim + 1)]
                cells = cells.unsqueeze(dim + 1).expand(repeats).flatten(dim, dim + 1)
                cells = cells.narrow(dim, 0, side)
        if self.pool > 1:
            cells = cells.contiguous()  # they are few, and many tokens read them
        return cells.unsqueeze(2).unsqueeze(4)

    def mean_adjoint(self, cells: Tensor) -> Tensor:
        """Adjoint of :meth:`mean`, in the form of :meth:`spread`."""
        if self.pool > 1:
            cells = cells / self._counts(cells)
        return self.spread(cells)

    def _counts(self, cells: Tensor) -> Tensor | int:
        """Tokens per cell: a number, or ``(A, E, 1, ...)`` where it varies."""
        if self.is_even:
            return self.pool**2
        rows, columns = (
            cells.new_tensor([min(self.pool, side - start) for start in range(0, side, self.pool)])
            for side in self.grid
        )
        counts = rows[:, None] * columns
        return counts.view(*counts.shape, *[1] * (cells.ndim - 3))

    def _pool(self, tokens: Tensor, divisor: int | None) -> Tensor:
        if self.pool == 1:
            return tokens.unflatten(1, self.grid)
        # Channels last in, channels last out: PyTorch pools such maps without rearranging them.
        pooled = F.avg_pool2d(
            tokens.flatten(2).unflatten(1, self.grid).permute(0, 3, 1, 2),
            self.pool,
            ceil_mode=True,
            count_include_pad=False,
            divisor_override=divisor,
        )
        return pooled.permute(0, 2, 3, 1).contiguous().unflatten(3, tokens.shape[2:])


class WindowsByProducts(NamedTuple):
    """What :class:`Windows` does, by products with small matrices: for graphs that serve grids of all sizes.

    No step asks whether cells are full, none has sides that a compiler would have to divide by ``pool``, and the
    backward pass is made of products too. A view is ``(B, H, W, ...)``.

    Attributes:
        grid: ``(H, W)`` tokens.
        pool: Tokens per side of a cell.
    """

    grid: Grid
    pool: int

    def view(self, tokens: Tensor) -> Tensor:
        """``(B, H * W, ...)`` as ``(B, H, W, ...)``."""
        return tokens.unflatten(1, self.grid)

    def mean(self, tokens: Tensor) -> Tensor:
        """As :meth:`Windows.mean`."""
        rows, columns = (
            members / members.sum(dim=1, keepdim=True) for members in self._members(tokens)
        )
        return self._pool(tokens, rows, columns)

    def sum(self, tokens: Tensor) -> Tensor:
        """As :meth:`Windows.sum`."""
        return self._pool(tokens, *self._members(tokens))

    def spread(self, cells: Tensor) -> Tensor:
        """Values per cell ``(B, A, E, ...)`` for its tokens: ``(B, H, W, ...)``."""
        if self.pool == 1:
            return cells
        rows, columns = self._members(cells)
        return _along_rows(rows.mT, _along_columns(columns.mT, cells))

    def _pool(self, tokens: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        if self.pool == 1:
            return self.view(tokens)
        return _along_columns(columns, _along_rows(rows, self.view(tokens)))

    def _members(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """1 where a cell holds a place, along each axis: ``(A, H)`` and ``(E, W)``."""
        rows, columns = (
            torch.arange(cells, device=like.device)[:, None]
            == torch.arange(side, device=like.device) // self.pool
            for cells, side in zip(Windows(*self).cells, self.grid)
        )
        return rows.to(like.dtype), columns.to(like.dtype)


def _along_rows(weights: Tensor, maps: Tensor) -> Tensor:
    """``weights`` ``(I, H)`` times ``(B, H, W, ...)``: ``(B, I, W, ...)``."""
    batch, places = maps.shape[0], weights.shape[0]
    product = torch.bmm(weights.expand(batch, -1, -1), maps.flatten(2))
    return product.view(batch, places, *maps.shape[2:])


def _along_columns(weights: Tensor, maps: Tensor) -> Tensor:
    """``weights`` ``(J, W)`` times ``(B, H, W, ...)``: ``(B, H, J, ...)``."""
    rows = maps.flatten(0, 1)
    product = torch.bmm(weights.expand(rows.shape[0], -1, -1), rows.flatten(2))
    return product.view(*maps.shape[:2], weights.shape[0], *maps.shape[3:])
