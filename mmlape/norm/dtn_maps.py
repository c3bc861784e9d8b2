"""DTN's position map P as a product of a row and a column softmax, and its application in plain PyTorch.

B batch, H x W tokens, A x E cells of pool x pool tokens, G heads, D channels per head
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
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


class DTNOptions(NamedTuple):
    """Options of a call; ``eps`` and ``stabilize`` as in :class:`~mmlape.norm.DTN`."""

    windows: Windows
    eps: float
    stabilize: bool


class PlainDTN(nn.Module):
    """Equations 4 and 5 by PyTorch's operators; ``mmlape.cpu.optimize`` replaces it by C++.

    In eager training its steps are recomputed in the backward pass from the input: autograd would save 15 tensors of
    its size.
    """

    def forward(
        self,
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
            options: Windows, ``eps`` and ``stabilize``.
            mask: ``(B, H * W)``, True for tokens that count in the statistics of others. Default None: all do.

        Returns:
            ``(B, H * W, G, D)``.
        """
        arguments = (x, P_y, P_x, mean_ratio, var_ratio, weight, bias, options, mask)
        if torch.is_grad_enabled() and is_eager(x):
            return checkpoint(_normalise, *arguments, use_reentrant=False, preserve_rng_state=False)
        return _normalise(*arguments)


def _normalise(
    x: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    mean_ratio: Tensor,
    var_ratio: Tensor,
    weight: Tensor,
    bias: Tensor,
    options: DTNOptions,
    mask: Tensor | None,
) -> Tensor:
    windows, eps, stabilize = options
    # Products with tiny weights would be subnormal numbers, which are a hundred times slower.
    trace = torch.finfo(x.dtype).tiny ** 0.5
    P_y, P_x = P_y.masked_fill(P_y < trace, 0), P_x.masked_fill(P_x < trace, 0)
    x = windows.view(x)
    if stabilize:
        x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    correction = min(int(stabilize), weight.numel() - 1)
    var, mean = torch.var_mean(x, dim=(-2, -1), correction=correction, keepdim=True)
    if mask is None:
        inter_mean, inter_var = _moments(windows.mean(x), P_y, P_x)
    else:
        inter_mean, inter_var = _moments_of_present(x, P_y, P_x, windows, mask)
    if windows.pool > 1:
        inter_mean, inter_var = windows.spread(inter_mean), windows.spread(inter_var)
    mean = torch.lerp(inter_mean, mean, mean_ratio)
    var = torch.lerp(inter_var, var, var_ratio)
    out = torch.addcmul(bias, (x - mean) * (var + eps).rsqrt(), weight)
    return out.flatten(1, -3)


def _moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor]:
    """``P z`` and ``P z^2 - (P z)^2`` of ``(B, A, E, G, D)``."""
    # The variance does not depend on the centre, and the mean gets it back: it needs no gradient.
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = cells - centre
    first, second = _filter(torch.cat([z, z.square()], dim=-1), P_y, P_x).chunk(2, dim=-1)
    return first + centre, (second - first.square()).clamp(min=0)


def _moments_of_present(
    x: Tensor, P_y: Tensor, P_x: Tensor, windows: Windows, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """As :func:`_moments`, of a view: ``P (m z) / P m`` with m = 1 for cells with present tokens and z their mean."""
    mask = windows.view(mask)[..., None, None]
    counts = windows.mean(mask.to(x.dtype), total=True)
    cells = windows.mean(x.masked_fill(~mask, 0), total=True) / counts.clamp(min=1)
    m = (counts > 0).to(x.dtype)
    share = m / m.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    # Where P m vanishes, far from all present cells, a tiny equal share of all of them remains.
    floor = torch.finfo(x.dtype).tiny ** 0.5
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
