"""Inter-token mean and variance through a separable map, and their gradients.

    B batch, G heads, A x E cells, D channels per head
    P_y (G or 1, A, A) and P_x (G or 1, E, E): row-stochastic factors of the map
    pairs (B, G, A, E, 2 D): for every channel the value and its square, so that one product serves both
"""

from __future__ import annotations

import torch
from torch import Tensor


def moments(cells: Tensor, P_y: Tensor, P_x: Tensor) -> Tensor:
    """Mean and variance of every cell's neighbourhood under ``P = P_y (x) P_x`` (ICLR 2022, eq. 5).

    The variance ``P z^2 - (P z)^2`` does not change when a constant is added to z, so z is counted from the image's mean:
    large means cost no precision. Rounding below zero is cut off.

    Args:
        cells: ``(B, A, E, G, D)``.
        P_y: Row factor.
        P_x: Column factor.

    Returns:
        ``(B, G, A, E, 2 D)``, means first.
    """
    centre = _centre(cells)
    result = _filter_rows(_filter_columns(_pairs(cells, centre), P_x), P_y)
    mean, var = result.chunk(2, dim=-1)
    var.addcmul_(mean, mean, value=-1).clamp_(min=0)
    mean.add_(head_major(centre))
    return result


def moments_backward(
    cells: Tensor,
    inter: Tensor,
    grad_mean: Tensor,
    grad_var: Tensor,
    P_y: Tensor,
    P_x: Tensor,
    needs_maps: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Gradients of :func:`moments` with respect to its arguments.

    Only cells and results are kept for it: squares and half-filtered pairs are made again. Where the variance was cut off,
    its gradient is that of the exact variance, which rounding alone had made negative.

    Args:
        cells: As passed to :func:`moments`, ``(B, A, E, G, D)``.
        inter: What it returned.
        grad_mean: ``(B, A, E, G, D)``.
        grad_var: ``(B, A, E, G, D)``.
        P_y: Row factor.
        P_x: Column factor.
        needs_maps: Whether the gradients of the maps are wanted; they are None otherwise.
    """
    centre = _centre(cells)
    pairs = _pairs(cells, centre)
    grad = torch.empty_like(pairs)
    # with respect to P z and P z^2
    grad_first, grad_second = grad.chunk(2, dim=-1)
    grad_second.copy_(head_major(grad_var))
    off_centre = inter.chunk(2, dim=-1)[0] - head_major(centre)
    torch.addcmul(head_major(grad_mean), off_centre, grad_second, value=-2, out=grad_first)
    grad_half = _filter_rows(grad, P_y.mT)
    grad_P_y = grad_P_x = None
    if needs_maps:
        grad_P_y = _map_gradient(grad.flatten(3), _filter_columns(pairs, P_x).flatten(3))
        grad_P_x = _map_gradient(grad_half, pairs)
    grad_first, grad_second = _filter_columns(grad_half, P_x.mT).chunk(2, dim=-1)
    value, _square = pairs.chunk(2, dim=-1)
    return token_major(grad_first.addcmul_(value, grad_second, value=2)), grad_P_y, grad_P_x


def head_major(cells: Tensor) -> Tensor:
    """View ``(B, A, E, G, D)`` as ``(B, G, A, E, D)``."""
    return cells.permute(0, 3, 1, 2, 4)


def token_major(cells: Tensor) -> Tensor:
    """View ``(B, G, A, E, D)`` as ``(B, A, E, G, D)``."""
    return cells.permute(0, 2, 3, 1, 4)


def _centre(cells: Tensor) -> Tensor:
    """Mean of each channel over an image's cells, ``(B, 1, 1, G, D)``."""
    return cells.flatten(1, 2).mean(dim=1)[:, None, None]


def _pairs(cells: Tensor, centre: Tensor) -> Tensor:
    """``cells - centre`` and its square, head by head."""
    B, A, E, G, D = cells.shape
    pairs = cells.new_empty(B, G, A, E, 2 * D)
    value, square = pairs.chunk(2, dim=-1)
    torch.sub(head_major(cells), head_major(centre), out=value)
    torch.mul(value, value, out=square)
    return pairs


def _filter_columns(pairs: Tensor, P_x: Tensor) -> Tensor:
    """``P_x`` along E."""
    B, G, A, E, K = pairs.shape
    maps = P_x[None, :, None].expand(B, G, A, E, E).reshape(-1, E, E)
    return torch.bmm(maps, pairs.view(-1, E, K)).view_as(pairs)


def _filter_rows(pairs: Tensor, P_y: Tensor) -> Tensor:
    """``P_y`` along A."""
    B, G, A, E, K = pairs.shape
    maps = P_y[None].expand(B, G, A, A).reshape(-1, A, A)
    return torch.bmm(maps, pairs.view(-1, A, E * K)).view_as(pairs)


def _map_gradient(grad: Tensor, pairs: Tensor) -> Tensor:
    """``grad pairs^T`` summed over the batch and other rows: ``(B, G, ..., L, K)`` to ``(G, L, L)``."""
    outer = torch.bmm(grad.flatten(0, -3), pairs.flatten(0, -3).mT)
    return outer.view(*grad.shape[:2], -1, *outer.shape[1:]).sum(dim=(0, 2))
