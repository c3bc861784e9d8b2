"""DTN in plain operators, for ``torch.func``, masks, and ``torch.compile`` where the operator in C++ is not.

A compiler fuses them, derives the backward pass, and follows changing grids; ``torch.func`` batches and derives them.
Inside a graph :class:`~mmlape.norm.dtn_function.DTNFunction` gains nothing: its buffers are reused by hand. torch 2.11
also cannot trace an autograd function whose grid has become symbolic, as it does with the second size of image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dtn_function import DTNOptions
from .dtn_maps import without_traces
from .windows import Windows, WindowsByProducts


def dtn_in_a_graph(
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
    """What ``DTNFunction.apply`` computes, see there for shapes, with statistics over the tokens of a mask.

    Args:
        x: As there, and so are the others.
        P_y: As there.
        P_x: As there.
        mean_ratio: As there.
        var_ratio: As there.
        weight: As there.
        bias: As there.
        options: As there.
        mask: ``(B, T)``, True for tokens that count. Default None: all do.
    """
    eps, stabilize = options.eps, options.stabilize
    windows: Windows | WindowsByProducts = options.windows
    if torch.compiler.is_compiling():
        windows = WindowsByProducts(*options.windows)
    P_y, P_x = without_traces(P_y), without_traces(P_x)
    if stabilize:
        x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    correction = min(int(stabilize), weight.numel() - 1)
    own_var, own_mean = torch.var_mean(x, dim=(2, 3), correction=correction, keepdim=True)

    if mask is None:
        inter_mean, inter_var = _moments(windows.mean(x), P_y, P_x)
    else:
        inter_mean, inter_var = _moments_of_present(x, P_y, P_x, windows, mask)

    def blend(own: Tensor, inter: Tensor, ratio: Tensor) -> Tensor:
        return torch.lerp(windows.spread(inter), windows.view(own), ratio)

    mean = blend(own_mean, inter_mean, mean_ratio)
    var = blend(own_var, inter_var, var_ratio)
    out = torch.addcmul(bias, (windows.view(x) - mean) * (var + eps).rsqrt(), weight)
    return out.reshape(x.shape)


def _moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor]:
    """``P z`` and ``P z^2 - (P z)^2`` of ``(B, A, E, G, D)``."""
    # neither moment depends on where it is counted from, so that point needs no gradient
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = cells - centre
    first, second = _filter_pair(z, z.square(), P_y, P_x)
    return first + centre, (second - first.square()).clamp(min=0)


def _moments_of_present(
    x: Tensor, P_y: Tensor, P_x: Tensor, windows: Windows | WindowsByProducts, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """The same with ``P (m z) / P m``, where m is 1 for cells with tokens that are there, and z their mean."""
    mask = mask[:, :, None, None]
    counts = windows.sum(mask.to(x.dtype))
    cells = windows.sum(x.masked_fill(~mask, 0)) / counts.clamp(min=1)
    m = (counts > 0).to(x.dtype)
    share = m / m.sum(dim=(1, 2), keepdim=True).clamp(min=1)
    # Far from all that is there P m may vanish. A share of next to nothing for all cells alike is what then remains.
    floor = torch.finfo(x.dtype).tiny ** 0.5
    total = _filter(m.expand(-1, -1, -1, x.shape[2], -1), P_y, P_x) + floor

    def anywhere(values: Tensor) -> Tensor:
        return (share * values).sum(dim=(1, 2), keepdim=True)

    centre = anywhere(cells).detach()
    z = cells - centre
    first, second = _filter_pair(m * z, m * z.square(), P_y, P_x)
    first = (first + floor * anywhere(z)) / total
    second = (second + floor * anywhere(z.square())) / total
    return first + centre, (second - first.square()).clamp(min=0)


def _filter(cells: Tensor, P_y: Tensor, P_x: Tensor) -> Tensor:
    """``P`` over the cells of ``(B, A, E, G, D)``, head by head.

    Two products with few views around them: a compiler follows each view several times, and einsum makes many.
    """
    G = cells.shape[3]
    rows = cells.permute(3, 1, 2, 0, 4).contiguous()
    columns = torch.bmm(P_y.expand(G, -1, -1), rows.flatten(2)).view(rows.shape)
    columns = columns.transpose(1, 2).contiguous()
    out = torch.bmm(P_x.expand(G, -1, -1), columns.flatten(2)).view(columns.shape)
    return out.permute(3, 2, 1, 0, 4)


def _filter_pair(first: Tensor, second: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor]:
    """:func:`_filter` of both, at once."""
    both = _filter(torch.cat([first, second], dim=-1), P_y, P_x)
    return both[..., : first.shape[-1]], both[..., first.shape[-1] :]
