"""DTN's normalisation by PyTorch's operators.

B batch, H x W tokens, A x E cells of pool x pool tokens, G heads, D channels per head
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mmlape.runtime.tracing import is_eager

from .dtn_maps import Windows


class DTNOptions(NamedTuple):
    """Options of a call; ``eps`` and ``stabilize`` as in :class:`~mmlape.norm.DTN`."""

    windows: Windows
    eps: float
    stabilize: bool


class PlainDTN(nn.Module):
    """Equations 4 and 5 by PyTorch's operators; ``mmlape.cpu.optimize`` replaces it by C++, ``mmlape.gpu.optimize`` by
    Triton kernels.

    In eager training it saves only its arguments and is computed again in the backward pass: autograd would save 15
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
        arguments = x, P_y, P_x, mean_ratio, var_ratio, weight, bias, options, mask
        if not (torch.is_grad_enabled() and is_eager(x)):
            return _normalise(*arguments)
        # Nothing is random, so no generator's state needs to be kept.
        return checkpoint(
            _normalise,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=False,
            determinism_check='none',
        )


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
    if x.is_cpu:
        # Products with tiny weights would be subnormal numbers, which are a hundred times slower there.
        trace = torch.finfo(x.dtype).tiny ** 0.5
        P_y, P_x = P_y.masked_fill(P_y < trace, 0), P_x.masked_fill(P_x < trace, 0)
    if stabilize:
        x = F.rms_norm(x, x.shape[-1:], eps=eps)
    z = windows.view(x)
    count = x.shape[-2] * x.shape[-1]
    correction = min(int(stabilize), count - 1)
    own_var, own_mean = torch.var_mean(z, dim=(-2, -1), correction=correction, keepdim=True)
    if mask is None:
        mean, var = _moments(windows.mean(z), P_y, P_x)
    else:
        mean, var = _moments_of_present(z, P_y, P_x, windows, mask)
    # No lerp, whose gradients would be tensors of the size of z before they are summed.
    mean, var = (1 - mean_ratio) * mean, (1 - var_ratio) * var.clamp(min=0)
    if windows.pool > 1:
        mean, var = windows.spread(mean), windows.spread(var)
    mean, var = mean + mean_ratio * own_mean, var + var_ratio * own_var
    return torch.addcmul(bias, (z - mean) * (var + eps).rsqrt(), weight).flatten(1, -3)


def _moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> tuple[Tensor, Tensor]:
    """``P z`` and ``P z^2 - (P z)^2`` of ``(B, A, E, G, D)``; by rounding, the latter may be below zero."""
    # The variance does not depend on the centre, and the mean gets it back: it needs no gradient.
    centre = cells.mean(dim=(1, 2), keepdim=True).detach()
    z = (cells - centre).permute(3, 1, 2, 0, 4)
    first, second = _filter(torch.cat([z, z.square()], dim=-1), P_y, P_x).chunk(2, dim=-1)
    return first + centre, torch.addcmul(second, first, first, value=-1)


def _moments_of_present(
    z: Tensor, P_y: Tensor, P_x: Tensor, windows: Windows, mask: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute :func:`_moments` of present tokens: ``P (m z) / P m``, m = 1 for cells with such tokens, z their mean."""
    mask = windows.view(mask)[..., None, None]
    number = windows.mean(mask.to(z.dtype), total=True)
    cells = windows.mean(z.masked_fill(~mask, 0), total=True) / number.clamp(min=1)
    m = (number > 0).to(z.dtype)
    share = m / m.sum(dim=(1, 2), keepdim=True).clamp(min=1)

    def anywhere(values: Tensor) -> Tensor:
        return (share * values).sum(dim=(1, 2), keepdim=True)

    centre = anywhere(cells).detach()
    z = cells - centre
    values = [m * z, m * z.square(), m.expand(-1, -1, -1, z.shape[3], -1)]
    found = _filter(torch.cat(values, dim=-1).permute(3, 1, 2, 0, 4).contiguous(), P_y, P_x)
    first, second, total = found.split([z.shape[-1], z.shape[-1], 1], dim=-1)
    # Where P m vanishes, far from all present cells, a tiny equal share of all of them remains.
    floor = torch.finfo(z.dtype).tiny ** 0.5
    total = total + floor
    first = (first + floor * anywhere(z)) / total
    second = (second + floor * anywhere(z.square())) / total
    return first + centre, torch.addcmul(second, first, first, value=-1)


def _filter(rows: Tensor, P_y: Tensor, P_x: Tensor) -> Tensor:
    """``P`` over cells, ``(G, A, E, B, D)``, head by head; the result is ``(B, A, E, G, D)``."""
    # Not by einsum, which makes many views: a compiler follows each of them several times.
    G = rows.shape[0]
    columns = torch.bmm(P_y.expand(G, -1, -1), rows.flatten(2)).view(rows.shape)
    columns = columns.transpose(1, 2).contiguous()
    out = torch.bmm(P_x.expand(G, -1, -1), columns.flatten(2)).view(columns.shape)
    return out.permute(3, 2, 1, 0, 4)
