"""DTN's position map P as a product of a row and a column softmax, and its application to tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

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


# Shorter axes are done in one product: it takes less time than to look for zeros.
_LONG = 48
_ROWS = 32


def without_traces(maps: Tensor) -> Tensor:
    """The same maps with zeros for weights that are next to nothing.

    Products with them would be subnormal numbers, for which processors take a hundred times as long.
    """
    return maps.masked_fill(maps < torch.finfo(maps.dtype).tiny ** 0.5, 0)


def axis_product(maps: Tensor, x: Tensor, out: Tensor | None = None) -> Tensor:
    """``maps @ x`` along L, for each head.

    Args:
        maps: ``(G or 1, L, L)``.
        x: ``(M, G, L, ...)``, contiguous.
        out: Contiguous, of the shape of ``x``, in other memory. Default None: new.
    """
    out = torch.empty_like(x) if out is None else out
    M, G, L = x.shape[:3]
    maps = maps.expand(M, G, L, L)
    if not _has_ranges(maps):
        torch.bmm(maps.reshape(-1, L, L), x.view(M * G, L, -1), out=out.view(M * G, L, -1))
        return out
    operand, result = x.view(M, G, L, -1), out.view(M, G, L, -1)
    for head, rows, places in _ranges(maps[0]):
        for i in range(M):
            weights = maps[i, head, rows, places]
            torch.mm(weights, operand[i, head, places], out=result[i, head, rows])
    return out


def map_gradient(maps: Tensor, grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of :func:`axis_product` with respect to ``maps``, of that of its result: ``grad @ x^T`` summed over M.

    Left out, and zero, far from weights that are not: they are a softmax, whose own gradient vanishes there.
    """
    M, G, L = x.shape[:3]
    if not _has_ranges(maps):
        products = torch.bmm(grad.view(M * G, L, -1), x.view(M * G, L, -1).mT)
        return products.view(M, G, L, L).sum(dim=0)
    grad, x = grad.view(M, G, L, -1), x.view(M, G, L, -1).mT
    result = grad.new_zeros(G, L, L)
    for head, rows, places in _ranges(maps.expand(G, L, L)):
        for i in range(M):
            result[head, rows, places].addmm_(grad[i, head, rows], x[i, head, :, places])
    return result


def _has_ranges(maps: Tensor) -> bool:
    """Whether the axis is long, and the weights are numbers that Python can read without waiting for a device."""
    readable = maps.is_cpu and type(maps) is Tensor and not torch.jit.is_tracing()
    return readable and maps.shape[-1] >= _LONG


def _ranges(maps: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Some rows of a head at a time, and the range of places outside of which their weights are zero."""
    length = maps.shape[1]
    parts = [rows.any(dim=1) for rows in maps.ne(0).split(_ROWS, dim=1)]
    used = torch.stack(parts, dim=1).to(torch.uint8)
    first, behind = used.argmax(dim=2), length - used.flip(2).argmax(dim=2)
    for head, bounds in enumerate(zip(first.tolist(), behind.tolist())):
        for block, (start, stop) in enumerate(zip(*bounds)):
            yield head, slice(block * _ROWS, (block + 1) * _ROWS), slice(start, stop)


def moments(cells: Tensor, centre: Tensor, P_y: Tensor, P_x: Tensor, eps: float) -> Tensor:
    """Mean and variance of every cell's neighbourhood under ``P = P_y (x) P_x`` (ICLR 2022, eq. 5).

    The variance is ``P z^2 - (P z)^2``; where rounding makes that negative, it is cut off at zero.

    Args:
        cells: ``(B, A, E, G, D)``.
        centre: ``(B, 1, 1, G, D)``, from where z is counted. It changes neither result; near the mean of the cells it
            keeps channels with a large mean from losing the precision of their variance.
        P_y: Row factor.
        P_x: Column factor.
        eps: Added to the variance.

    Returns:
        Pairs of mean and variance + eps, along A.
    """
    pairs = _values_and_squares(cells, centre, eps)
    half = axis_product(P_x, pairs)
    result = axis_product(P_y, _other_axis(half, out=pairs), out=half.view(_turned(pairs)))
    mean, var = result.unbind()
    # rows of P sum to one, so an eps added to z^2 is there already
    var.addcmul_(mean, mean, value=-1).clamp_(min=eps)
    mean.add_(along_rows(centre))
    return result


def moments_backward(
    grad: Tensor,
    result: Tensor,
    cells: Tensor,
    centre: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    needs_maps: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of :func:`moments` with respect to cells, ``P_y`` and ``P_x``.

    Only cells and means are kept for it; squares and half-filtered pairs are made again. Where the variance was cut
    off, its gradient is that of the exact variance, which rounding alone had made negative.

    Args:
        grad: Pairs along A, with respect to mean and variance. Overwritten.
        result: What :func:`moments` returned; the means are read.
        cells: As passed to it, and so are ``centre``, ``P_y`` and ``P_x``.
        centre: As above.
        P_y: As above.
        P_x: As above.
        needs_maps: Whether the gradients of the maps are wanted; they are None otherwise.
    """
    mean = result.unbind()[0]
    grad_first, grad_second = grad.unbind()
    # P z = mean - centre; the gradients then are with respect to P z and P z^2
    grad_first.addcmul_(mean, grad_second, value=-2)
    grad_first.addcmul_(along_rows(centre), grad_second, value=2)

    pairs = _values_and_squares(cells, centre, 0.0)
    grad_half = axis_product(P_y.mT, grad)
    grad_P_y = grad_P_x = None
    if needs_maps:
        half = axis_product(P_x, pairs)
        grad_P_y = map_gradient(P_y, grad, _other_axis(half, out=torch.empty_like(grad)))
    grad_half = _other_axis(grad_half, out=grad)
    if needs_maps:
        grad_P_x = map_gradient(P_x, grad_half, pairs)
    grad_first, grad_second = axis_product(P_x.mT, grad_half).unbind()
    grad_cells = grad_first.addcmul_(pairs.unbind()[0], grad_second, value=2)
    return grad_cells.transpose(0, 3).transpose(1, 2), grad_P_y, grad_P_x


def along_rows(cells: Tensor) -> Tensor:
    """View ``(B, A, E, G, D)`` as half of pairs along A, ``(G, A, E, B, D)``, and the other way round."""
    return cells.transpose(0, 3)


def as_pairs(*halves: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs along A of two ``(B, A, E, G, D)``, each multiplied by its factor per head, ``(G, 1)``."""
    cells, _factor = halves[0]
    B, A, E, G, D = cells.shape
    pairs = cells.new_empty(2, G, A, E, B, D)
    for half, (values, factor) in zip(pairs.unbind(), halves):
        torch.mul(along_rows(values), factor[:, None, None, None], out=half)
    return pairs


def _values_and_squares(cells: Tensor, centre: Tensor, eps: float) -> Tensor:
    """Pairs along E of ``z = cells - centre`` and ``z^2 + eps``."""
    B, A, E, G, D = cells.shape
    pairs = cells.new_empty(2, G, E, A, B, D)
    value, square = pairs.unbind()
    torch.sub(*(along_rows(part).transpose(1, 2) for part in (cells, centre)), out=value)
    torch.addcmul(cells.new_full((), eps), value, value, out=square)
    return pairs


def _other_axis(pairs: Tensor, out: Tensor) -> Tensor:
    """The same pairs along the other axis, in the memory of ``out``."""
    return out.view(_turned(pairs)).copy_(pairs.transpose(2, 3))


def _turned(pairs: Tensor) -> tuple[int, ...]:
    two, G, L, M, B, D = pairs.shape
    return two, G, M, L, B, D
