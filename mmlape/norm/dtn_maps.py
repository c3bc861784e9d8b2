"""DTN's position map P as a product of a row and a column softmax, and its application in plain PyTorch.

B batch, H x W tokens, A x E cells of pool x pool tokens, G heads, D channels per head
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.checks import check_positive_int
from mmlape.layout import Grid
from mmlape.position.gabor_attention import QuadraticScores, axis_offsets
from mmlape.runtime.tracing import is_eager


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


class UniformMap(BandedMap):
    """Equal weights of all cells: inter-token statistics are those of InstanceNorm (eq. 3)."""

    def __init__(self) -> None:
        super().__init__(band=2**31 - 1)


class DTNOptions(NamedTuple):
    """Options of a call: ``(H, W)`` tokens, and ``pool``, ``eps`` and ``stabilize`` as in :class:`~mmlape.norm.DTN`."""

    grid: Grid
    pool: int
    eps: float
    stabilize: bool


def cells_of(grid: Grid, pool: int) -> Grid:
    """Cells ``(A, E)`` of ``pool x pool`` tokens, or fewer at the bottom and right of a ``grid`` ``(H, W)``."""
    return (grid[0] + pool - 1) // pool, (grid[1] + pool - 1) // pool


def cell_members(grid: Grid, pool: int, cells: Grid, like: Tensor) -> list[Tensor]:
    """1 where a token is in a cell, along each axis: ``(A, H)`` and ``(E, W)``, as ``like``."""
    members = []
    for side, count in zip(grid, cells):
        numbers = torch.arange(side, device=like.device) // pool
        members.append((torch.arange(count, device=like.device)[:, None] == numbers).to(like))
    return members


def along_axes(rows: Tensor, columns: Tensor, maps: Tensor) -> Tensor:
    """``rows`` ``(I, H)`` and ``columns`` ``(J, W)`` times ``(B, H, W, ...)``: ``(B, I, J, ...)``."""
    # By products, since views of cells would need full ones, and graphs of their own.
    batch, count = maps.shape[0], rows.shape[0]
    product = torch.bmm(rows.expand(batch, -1, -1), maps.flatten(2))
    maps = product.view(batch, count, *maps.shape[2:])
    flat = maps.flatten(0, 1).flatten(2)
    product = torch.bmm(columns.expand(flat.shape[0], -1, -1), flat)
    return product.view(batch, count, columns.shape[0], *maps.shape[3:])


class PlainDTN(nn.Module):
    """Equations 4 and 5 by PyTorch's operators; ``mmlape.cpu.optimize`` replaces it by C++.

    In eager training its steps are recomputed in the backward pass from the input: autograd would save 15 tensors of
    its size.
    """

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        """See :func:`normalise`."""
        if torch.is_grad_enabled() and is_eager(x):
            return checkpoint(normalise, x, *others, use_reentrant=False, preserve_rng_state=False)
        return normalise(x, *others)


def normalise(
    x: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    mean_ratio: Tensor,
    var_ratio: Tensor,
    weight: Tensor,
    bias: Tensor,
    options: DTNOptions,
    mask: Tensor | None = None,
) -> Tensor:
    """Normalise.

    Args:
        x: ``(B, H * W, G, D)``, float32 or float64, and so are the others.
        P_y, P_x: Row and column factor of the maps, ``(G or 1, A, A)`` and ``(G or 1, E, E)``.
        mean_ratio, var_ratio: Share of the token's own mean and variance, ``(G, 1)``.
        weight, bias: ``(G, D)``.
        options: Grid, ``pool``, ``eps`` and ``stabilize``.
        mask: ``(B, H * W)``, True for tokens that count in the statistics of others. Default None: all do.

    Returns:
        ``(B, H * W, G, D)``.
    """
    grid, pool, eps, stabilize = options
    # Products with tiny weights would be subnormal numbers, which are a hundred times slower.
    trace = torch.finfo(x.dtype).tiny ** 0.5
    P_y, P_x = P_y.masked_fill(P_y < trace, 0), P_x.masked_fill(P_x < trace, 0)
    x = x.unflatten(1, grid)
    if stabilize:
        x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    correction = min(int(stabilize), weight.numel() - 1)
    var, mean = torch.var_mean(x, dim=(-2, -1), correction=correction, keepdim=True)
    cells, counts = x, None
    if mask is not None:
        mask = mask.unflatten(1, grid)[..., None, None]
        cells, counts = x.masked_fill(~mask, 0), mask.to(x.dtype)
    if pool > 1:
        rows, columns = cell_members(grid, pool, (P_y.shape[-1], P_x.shape[-1]), x)
        if counts is None:
            share = rows / rows.sum(dim=1, keepdim=True), columns / columns.sum(dim=1, keepdim=True)
            cells = along_axes(*share, cells)
        else:
            counts = along_axes(rows, columns, counts)
            cells = along_axes(rows, columns, cells) / counts.clamp(min=1)
    if counts is None:
        inter_mean, inter_var = _moments(cells, P_y, P_x)
    else:
        inter_mean, inter_var = _moments_of_present(cells, counts > 0, P_y, P_x)
    if pool > 1:
        inter_mean = along_axes(rows.mT, columns.mT, inter_mean)
        inter_var = along_axes(rows.mT, columns.mT, inter_var)
    mean = torch.lerp(inter_mean, mean, mean_ratio)
    var = torch.lerp(inter_var, var, var_ratio)
    out = torch.addcmul(bias, (x - mean) * (var + eps).rsqrt(), weight)
    return out.flatten(1, 2)


def _moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor]:
    """``P z`` and ``P z^2 - (P z)^2`` of ``(B, A, E, G, D)``."""
    # The variance does not depend on the centre, and the mean gets it back: it needs no gradient.
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = cells - centre
    first, second = _filter(torch.cat([z, z.square()], dim=-1), P_y, P_x).chunk(2, dim=-1)
    return first + centre, (second - first.square()).clamp(min=0)


def _moments_of_present(
    cells: Tensor, present: Tensor, P_y: Tensor, P_x: Tensor
) -> tuple[Tensor, Tensor]:
    """As :func:`_moments`, with ``P (m z) / P m`` for ``P z``, where m is 1 in cells with ``present`` tokens."""
    m = present.to(cells.dtype)
    share = m / m.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    # Where P m vanishes, far from all present cells, a tiny equal share of all of them remains.
    floor = torch.finfo(m.dtype).tiny ** 0.5
    total = _filter(m.expand(-1, -1, -1, cells.shape[3], -1), P_y, P_x) + floor

    def anywhere(values: Tensor) -> Tensor:
        return (share * values).sum(dim=(1, 2), keepdim=True)

    centre = anywhere(cells).detach()
    z = cells - centre
    both = _filter(torch.cat([m * z, m * z.square()], dim=-1), P_y, P_x)
    first, second = both.chunk(2, dim=-1)
    first = (first + floor * anywhere(z)) / total
    second = (second + floor * anywhere(z.square())) / total
    return first + centre, (second - first.square()).clamp(min=0)


def _filter(cells: Tensor, P_y: Tensor, P_x: Tensor) -> Tensor:
    """``P`` over the cells of ``(B, A, E, G, D)``, head by head."""
    # Not by einsum, which makes many views: a compiler follows each of them several times.
    G = cells.shape[3]
    rows = cells.permute(3, 1, 2, 0, 4).contiguous()
    columns = torch.bmm(P_y.expand(G, -1, -1), rows.flatten(2)).view(rows.shape)
    columns = columns.transpose(1, 2).contiguous()
    out = torch.bmm(P_x.expand(G, -1, -1), columns.flatten(2)).view(columns.shape)
    return out.permute(3, 2, 1, 0, 4)
