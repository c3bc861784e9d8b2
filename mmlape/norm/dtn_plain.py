"""DTN's normalisation by PyTorch's operators, and its gradients.

B batch, H x W tokens, A x E cells of pool x pool tokens, G heads, D channels per head
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import Function

from mmlape.runtime.autocast import without_autocast
from mmlape.runtime.tracing import is_eager

from .dtn_maps import Windows


class DTNOptions(NamedTuple):
    """Options of a call; ``eps`` and ``stabilize`` as in :class:`~mmlape.norm.DTN`."""

    windows: Windows
    eps: float
    stabilize: bool


class PlainDTN(nn.Module):
    """Equations 4 and 5 by PyTorch's operators; ``mmlape.cpu.optimize`` replaces it by C++.

    In eager training it saves only its arguments, and the backward pass computes the rest again: autograd would save 15
    tensors of the size of the input.
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
        inputs = x, P_y, P_x, mean_ratio, var_ratio
        if torch.is_grad_enabled() and is_eager(x):
            return _Normalise.apply(*inputs, weight, bias, options, mask)
        return torch.addcmul(bias, _parts(*inputs, options, mask).y, weight).flatten(1, -3)


class _Normalise(Function):
    """The same, differentiable any number of times."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        x, P_y, P_x, mean_ratio, var_ratio, weight, bias, ctx.options, mask = arguments
        ctx.save_for_backward(x, P_y, P_x, mean_ratio, var_ratio, weight, mask)
        y = _parts(x, P_y, P_x, mean_ratio, var_ratio, ctx.options, mask).y
        return torch.addcmul(bias, y, weight).flatten(1, -3)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *tensors, mask = ctx.saved_tensors
        needs_maps = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
        with without_autocast(grad.device):
            found = _gradients(grad, tensors, ctx.options, mask, needs_maps)
        return *found, None, None


def _gradients(
    grad: Tensor,
    tensors: Sequence[Tensor],
    options: DTNOptions,
    mask: Tensor | None,
    needs_maps: bool,
) -> tuple[Tensor | None, ...]:
    """Of x, P_y, P_x, both ratios, weight and bias. What is called ``d_a`` is the gradient of a."""
    x, P_y, P_x, mean_ratio, var_ratio, weight = tensors
    parts = _parts(x, P_y, P_x, mean_ratio, var_ratio, options, mask, keep=True)
    maps, z, scale, own, freedom, inter, rstd, y, kept = parts
    windows, around = options.windows, cast(_Around, kept)
    d_out = windows.view(grad)
    outer = tuple(range(d_out.dim() - 2))
    d_weight, d_bias = (d_out * y).sum(dim=outer), d_out.sum(dim=outer)
    d_z = d_out * weight * rstd
    # Of the variance and the mean that z is normalised by. A share of each, the ratio, is the token's own.
    d_ratios, d_own, d_inter = [], [], []
    used = (d_z * y * rstd, -0.5, var_ratio), (d_z, -1.0, mean_ratio)
    for (d, factor, ratio), one, other in zip(used, own, inter):
        by_head = factor * d.sum(dim=-1, keepdim=True)
        by_cell = factor * windows.mean(d, total=True)
        of_cells = (by_cell * other).sum(dim=(0, 1, 2)).sum(dim=-1, keepdim=True)
        d_ratios.append((by_head * one).sum(dim=outer) - of_cells)
        d_own.append((by_head * ratio).sum(dim=-2, keepdim=True))
        d_inter.append(by_cell * (1 - ratio))
    slope = d_own[0] * (2 / freedom)
    d_z = torch.addcmul(d_z + (d_own[1] / weight.numel() - slope * own[1]), slope, z)
    d_cells, d_maps = _gradients_around(d_inter[0], d_inter[1], around, *maps, needs_maps)
    if mask is None or around.present is None:
        shared = d_cells if windows.pool == 1 else d_cells / windows.counts(z)
        d_z = d_z + windows.spread(shared)
    else:
        present = windows.view(mask)[..., None, None]
        d_z = d_z + windows.spread(d_cells / around.present.counts) * present
    if scale is not None:
        d_z = scale * torch.addcmul(d_z, z, -(d_z * z).mean(dim=-1, keepdim=True))
    return d_z.flatten(1, -3), *d_maps, *reversed(d_ratios), d_weight, d_bias


class _Parts(NamedTuple):
    """Of a pass: ``own`` and ``inter`` are a variance and a mean; ``freedom``, what the own variance divides by."""

    maps: tuple[Tensor, Tensor]
    z: Tensor
    scale: Tensor | None
    own: tuple[Tensor, Tensor]
    freedom: int
    inter: tuple[Tensor, Tensor]
    rstd: Tensor
    y: Tensor
    around: _Around | None


def _parts(
    x: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    mean_ratio: Tensor,
    var_ratio: Tensor,
    options: DTNOptions,
    mask: Tensor | None,
    keep: bool = False,
) -> _Parts:
    """``keep`` what only gradients need: seven times the cells."""
    windows, eps, stabilize = options
    if x.is_cpu:
        # Products with tiny weights would be subnormal numbers, which are a hundred times slower there.
        trace = torch.finfo(x.dtype).tiny ** 0.5
        P_y, P_x = P_y.masked_fill(P_y < trace, 0), P_x.masked_fill(P_x < trace, 0)
    z, scale = windows.view(x), None
    if stabilize:
        scale = (z.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
        z = z * scale
    count = x.shape[-2] * x.shape[-1]
    correction = min(int(stabilize), count - 1)
    own = torch.var_mean(z, dim=(-2, -1), correction=correction, keepdim=True)
    if mask is None:
        around = _moments(windows.mean(z), P_y, P_x)
    else:
        around = _moments_of_present(z, P_y, P_x, windows, mask)
    inter, kept = (around.var.clamp(min=0), around.mean), around if keep else None
    del around
    spread = inter if windows.pool == 1 else (windows.spread(inter[0]), windows.spread(inter[1]))
    mean = torch.lerp(spread[1], own[1], mean_ratio)
    rstd = (torch.lerp(spread[0], own[0], var_ratio) + eps).rsqrt()
    y = (z - mean) * rstd
    return _Parts((P_y, P_x), z, scale, own, count - correction, inter, rstd, y, kept)


class _Present(NamedTuple):
    """Of cells, ``(B, A, E, 1 or G, 1)``: their present tokens, but 1 at least; ``m``, 1 where there are some, else 0;
    an equal ``share`` for each of these; ``P m`` above a ``floor``."""

    counts: Tensor
    m: Tensor
    share: Tensor
    total: Tensor
    floor: float


class _Around(NamedTuple):
    """Statistics across cells, ``(B, A, E, G, D)``: ``var`` may be below zero by rounding. And what gradients need."""

    mean: Tensor
    var: Tensor
    z: Tensor
    first: Tensor
    second: Tensor
    rows: Tensor
    columns: Tensor
    present: _Present | None


def _moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> _Around:
    """``P z`` and ``P z^2 - (P z)^2`` of ``(B, A, E, G, D)``."""
    # The variance does not depend on the centre, and the mean gets it back: it needs no gradient.
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = cells - centre
    both, rows, columns = _filter(torch.cat([z, z.square()], dim=-1), P_y, P_x)
    first, second = both.chunk(2, dim=-1)
    var = second - first.square()
    return _Around(first + centre, var, z, first, second, rows, columns, None)


def _moments_of_present(
    x: Tensor, P_y: Tensor, P_x: Tensor, windows: Windows, mask: Tensor
) -> _Around:
    """As :func:`_moments`, of a view: ``P (m z) / P m`` with m = 1 for cells with present tokens and z their mean."""
    mask = windows.view(mask)[..., None, None]
    number = windows.mean(mask.to(x.dtype), total=True)
    counts = number.clamp(min=1)
    cells = windows.mean(x.masked_fill(~mask, 0), total=True) / counts
    m = (number > 0).to(x.dtype)
    share = m / m.sum(dim=(1, 2), keepdim=True).clamp(min=1)

    def anywhere(values: Tensor) -> Tensor:
        return (share * values).sum(dim=(1, 2), keepdim=True)

    centre = anywhere(cells).detach()
    z = cells - centre
    values = [m * z, m * z.square(), m.expand(-1, -1, -1, z.shape[3], -1)]
    found, rows, columns = _filter(torch.cat(values, dim=-1), P_y, P_x)
    first, second, total = found.split([z.shape[-1], z.shape[-1], 1], dim=-1)
    # Where P m vanishes, far from all present cells, a tiny equal share of all of them remains.
    floor = torch.finfo(x.dtype).tiny ** 0.5
    total = total + floor
    first = (first + floor * anywhere(z)) / total
    second = (second + floor * anywhere(z.square())) / total
    present = _Present(counts, m, share, total, floor)
    var = second - first.square()
    return _Around(first + centre, var, z, first, second, rows, columns, present)


def _gradients_around(
    d_var: Tensor, d_mean: Tensor, around: _Around, P_y: Tensor, P_x: Tensor, needs_maps: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """Of the cells, ``(B, A, E, G, D)``, and of the maps, from those of the clamped variance and the mean."""
    _, var, z, first, second, rows, columns, present = around
    d_second = d_var.masked_fill(var < 0, 0)
    d_first = d_mean - 2 * first * d_second
    d_found = [d_first, d_second]
    if present is not None:
        d_first, d_second = d_first / present.total, d_second / present.total
        d_total = -(d_first * first + d_second * second).sum(dim=-1, keepdim=True)
        d_found = [d_first, d_second, d_total]
    d_values, d_maps = _filter_gradients(
        torch.cat(d_found, dim=-1), rows, columns, P_y, P_x, needs_maps
    )
    to_z, to_square = d_values[..., : z.shape[-1]], d_values[..., z.shape[-1] : 2 * z.shape[-1]]
    if present is not None:
        _, m, share, _, floor = present
        to_z, to_square = (
            m * near + floor * share * far.sum(dim=(1, 2), keepdim=True)
            for near, far in ((to_z, d_first), (to_square, d_second))
        )
    return to_z + 2 * z * to_square, d_maps


def _filter(cells: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``P`` over the cells of ``(B, A, E, G, D)``, head by head. Also what P_y weighs, ``(G, A, E, B, D)``, and what
    P_x weighs, ``(G, E, A, B, D)``."""
    # Not by einsum, which makes many views: a compiler follows each of them several times.
    G = cells.shape[3]
    rows = cells.permute(3, 1, 2, 0, 4).contiguous()
    columns = torch.bmm(P_y.expand(G, -1, -1), rows.flatten(2)).view(rows.shape)
    columns = columns.transpose(1, 2).contiguous()
    out = torch.bmm(P_x.expand(G, -1, -1), columns.flatten(2)).view(columns.shape)
    return out.permute(3, 2, 1, 0, 4), rows, columns


def _filter_gradients(
    grad: Tensor, rows: Tensor, columns: Tensor, P_y: Tensor, P_x: Tensor, needs_maps: bool
) -> tuple[Tensor, list[Tensor | None]]:
    """Of the cells, and of P_y and P_x if they are needed."""
    d_out = grad.permute(3, 2, 1, 0, 4).contiguous()
    d_columns = torch.bmm(P_x.mT.expand(len(rows), -1, -1), d_out.flatten(2)).view(d_out.shape)
    d_rows = d_columns.transpose(1, 2).contiguous()
    d_cells = torch.bmm(P_y.mT.expand(len(rows), -1, -1), d_rows.flatten(2)).view(d_rows.shape)
    d_maps: list[Tensor | None] = [None, None]
    if needs_maps:
        pairs = ((d_rows, rows, P_y), (d_out, columns, P_x))
        d_maps = [
            torch.bmm(d.flatten(2), of.flatten(2).mT).sum_to_size(P.shape) for d, of, P in pairs
        ]
    return d_cells.permute(3, 1, 2, 0, 4), d_maps
