"""DTN's position map P as a product of a row and a column softmax."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid
from mmlape.position.gabor_attention import QuadraticScores, axis_offsets


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


class LearnedMap(QuadraticScores, PositionMap):
    """DTN's own map with a learned ``a`` per head (eq. 6): the softmax of
    :class:`~mmlape.position.gabor_attention.QuadraticScores`, which has its parameters and initial values."""

    def forward(
        self, grid: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """Row and column factors of every head, ``(G, H, H)`` and ``(G, W, W)``."""
        rows, columns = self.along_axes(grid, grid, device, dtype)
        return rows.softmax(dim=-1), columns.softmax(dim=-1)


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
        offsets = axis_offsets(length, length, device, dtype)[:1]
        inside = (offsets.abs() <= self.band // 2).to(dtype)
        return inside / inside.sum(dim=-1, keepdim=True)


def without_traces(maps: Tensor) -> Tensor:
    """The same maps with zeros for weights that are next to nothing.

    Products with them would be subnormal numbers, for which processors take a hundred times as long.
    """
    return maps.masked_fill(maps < torch.finfo(maps.dtype).tiny ** 0.5, 0)
