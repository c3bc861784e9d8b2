"""Where a token looks for its inter-token statistics: positional maps, as a row and a column factor.

DTN's map (ICLR 2022, eq. 6) is ``P[i, j] = softmax_j(a_x dx + a_y dy + a_2 (dx^2 + dy^2))`` with the offsets ``(dx,
dy)`` between the tokens i and j. The exponent is a sum of a function of dx and a function of dy, and over a rectangular
grid so is the logarithm of its normaliser: ``P[(y, x), (v, u)] = P_y[y, v] P_x[x, u]``, exactly and for every ``a``.
The maps here are therefore pairs of small stochastic matrices; the T x T map is never formed.

    G heads, L length of an axis, H x W grid of cells
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from mmlape.checks import check_option, check_positive_int
from mmlape.kept import kept
from mmlape.layout import Grid


@kept
def axis_offsets(length: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Offsets ``d = i - j`` between the cells of an axis, and their squares.

    Returns:
        ``(2, L * L)``: d and d^2 for i (slower) and j (faster).
    """
    cells = torch.arange(length, device=device, dtype=dtype)
    offsets = (cells[:, None] - cells[None]).flatten()
    return torch.stack([offsets, offsets.square()])


class PositionMap(nn.Module, ABC):
    """Answers which cells of the grid a cell takes its statistics from, by head."""

    @abstractmethod
    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Return ``P_y`` ``(G or 1, H, H)`` and ``P_x`` ``(G or 1, W, W)``; every row sums to one.

        Args:
            grid: ``(H, W)`` cells.
            device: Where the maps are wanted.
            dtype: Of the maps; they are computed in it as well.
        """


class LearnedMap(PositionMap):
    """DTN's own map with a learned ``a`` per head (eq. 6).

    ``weight`` ``(G, 3)`` holds ``(a_x, a_y, a_2)``: the factors of dx, dy and dx^2 + dy^2, offsets counted from token j
    to token i, as in published weights (the paper writes ``[a_2, a_x, a_y]``).

    Args:
        num_heads: ``G``.
        init: ``'local'`` for eq. 7, see :func:`local_rows`; ``'random'`` for a normal distribution with standard
            deviation 0.02 truncated at 2, which makes the map nearly uniform.

    Raises:
        ValueError: If ``init`` is neither.
    """

    def __init__(self, num_heads: int, init: str = 'local') -> None:
        super().__init__()
        self.init = check_option('position_init', init, _INITS)
        self.weight = nn.Parameter(torch.empty(num_heads, 3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as asked for."""
        # Truncated at +-2, far out in the tails: as PyTorch, timm and the published networks do.
        nn.init.trunc_normal_(self.weight, std=0.02)
        rows = _INITS[self.init](len(self.weight))
        with torch.no_grad():
            self.weight[: len(rows)] = rows

    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Row and column factors of every head, ``(G, H, H)`` and ``(G, W, W)``."""
        a_x, a_y, a_2 = self.weight.to(dtype).unbind(dim=1)
        rows, columns = (
            (torch.stack([linear, a_2], dim=1) @ axis_offsets(length, device, dtype))
            .unflatten(1, (length, length))
            .softmax(dim=-1)
            for linear, length in zip((a_y, a_x), grid)
        )
        return rows, columns


class UniformMap(PositionMap):
    """Every cell counts the same: inter-token statistics are those of InstanceNorm (eq. 3)."""

    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """``(1, H, H)`` and ``(1, W, W)``."""
        rows, columns = (
            torch.full((1, length, length), 1 / length, device=device, dtype=dtype)
            for length in grid
        )
        return rows, columns


class BandedMap(PositionMap):
    """The ``band x band`` cells around a cell count the same, cut at the borders: local InstanceNorm (Fig. 4).

    On a sequence, ``grid = (1, T)``, it is the paper's k-banded matrix with k = ``band``.

    Args:
        band: Odd number of cells along each axis.

    Raises:
        ValueError: If ``band`` is even.
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
        offsets = axis_offsets(length, device, dtype)[0].view(1, length, length)
        inside = (offsets.abs() <= self.band // 2).to(dtype)
        return inside / inside.sum(dim=-1, keepdim=True)


def local_rows(num_heads: int) -> Tensor:
    """Rows ``(a_x, a_y, a_2)`` that make heads look at a neighbourhood of ``sqrt(G) x sqrt(G)`` cells (eq. 7).

    Head ``k n + m`` (k = floor(sqrt(G))) gets ``(2 D_n, 2 D_m, -1)`` with offsets centred on zero, so that an even k
    gives half cells. Only the first k^2 heads have such a place: of 6 heads four, of 5 four, of 3 one.

    Returns:
        ``(k^2, 3)``.
    """
    side = math.isqrt(num_heads)
    centres = 2 * torch.arange(side, dtype=torch.float32) - (side - 1)
    pairs = torch.cartesian_prod(centres, centres).view(-1, 2)
    return torch.cat([pairs, -torch.ones(side * side, 1)], dim=1)


_INITS = {'local': local_rows, 'random': lambda num_heads: torch.empty(0, 3)}
