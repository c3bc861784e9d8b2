"""DTN in plain operators, for ``torch.compile``: it fuses them, derives the backward pass, and follows changing grids.

Inside a graph :class:`~mmlape.norm.dtn_function.DTNFunction` gains nothing: its buffers are reused by hand. torch 2.11
also cannot trace an autograd function whose grid has become symbolic, as it does with the second size of image.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .dtn_function import DTNOptions


def dtn_in_a_graph(
    x: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    mean_ratio: Tensor,
    var_ratio: Tensor,
    weight: Tensor,
    bias: Tensor,
    options: DTNOptions,
) -> Tensor:
    """What ``DTNFunction.apply`` computes, see there for shapes."""
    windows, eps, stabilize = options
    if stabilize:
        x = x * (x.square().mean(dim=-1, keepdim=True) + eps).rsqrt()
    correction = min(int(stabilize), weight.numel() - 1)
    own_var, own_mean = torch.var_mean(x, dim=(2, 3), correction=correction, keepdim=True)

    cells = windows.mean(x)
    # neither moment depends on where it is counted from, so that point needs no gradient
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = cells - centre
    first, second = _filter(z, P_y, P_x), _filter(z.square(), P_y, P_x)
    inter_var = (second - first.square()).clamp(min=0)

    def blend(own: Tensor, inter: Tensor, ratio: Tensor) -> Tensor:
        return torch.lerp(windows.spread(inter), windows.view(own), ratio)

    mean = blend(own_mean, first + centre, mean_ratio)
    var = blend(own_var, inter_var, var_ratio)
    out = torch.addcmul(bias, (windows.view(x) - mean) * (var + eps).rsqrt(), weight)
    return out.reshape(x.shape)


def _filter(cells: Tensor, P_y: Tensor, P_x: Tensor) -> Tensor:
    """``P`` over the cells of ``(B, A, E, G, D)``, head by head."""
    G = cells.shape[3]
    half = torch.einsum('gya,baegd->byegd', P_y.expand(G, -1, -1), cells)
    return torch.einsum('gxe,byegd->byxgd', P_x.expand(G, -1, -1), half)
