"""Inter-token mean and variance through a separable map, and their gradients.

B batch, G heads, A x E cells, D channels per head
P_y (G or 1, A, A) and P_x (G or 1, E, E): row-stochastic factors of the map
pairs (B, G, A, E, 2 D): for every channel two values side by side, so that one product serves both
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


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
        Pairs of mean and variance + eps.
    """
    pairs = cells.new_empty(_pairs_shape(cells))
    _set_values_and_squares(pairs, cells, centre, eps)
    result = _filter_columns(_filter_rows(pairs, P_y), P_x, out=pairs)
    mean, var = result.chunk(2, dim=-1)
    # rows of P sum to one, so an eps added to z^2 is there already
    var.addcmul_(mean, mean, value=-1).clamp_(min=eps)
    mean.add_(head_major(centre))
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
        grad: Pairs, with respect to mean and variance. Overwritten.
        result: What :func:`moments` returned; the means are read.
        cells: As passed to it, and so are ``centre``, ``P_y`` and ``P_x``.
        centre: As above.
        P_y: As above.
        P_x: As above.
        needs_maps: Whether the gradients of the maps are wanted; they are None otherwise.
    """
    mean = result.chunk(2, dim=-1)[0]
    grad_first, grad_second = grad.chunk(2, dim=-1)
    # P z = mean - centre; the gradients then are with respect to P z and P z^2
    grad_first.addcmul_(mean, grad_second, value=-2)
    grad_first.addcmul_(head_major(centre), grad_second, value=2)

    pairs = _new_pairs(grad, grad.shape)
    _set_values_and_squares(pairs, cells, centre, 0.0)
    grad_half = _filter_columns(grad, P_x.mT)
    grad_P_y = grad_P_x = None
    if needs_maps:
        grad_P_x = _map_gradient(grad, _filter_rows(pairs, P_y))
        grad_P_y = _map_gradient(grad_half.flatten(3), pairs.flatten(3))
    grad_first, grad_second = _filter_rows(grad_half, P_y.mT, out=grad).chunk(2, dim=-1)
    grad_cells = grad_first.addcmul_(pairs.chunk(2, dim=-1)[0], grad_second, value=2)
    return token_major(grad_cells), grad_P_y, grad_P_x


def head_major(cells: Tensor) -> Tensor:
    """View ``(B, A, E, G, D)`` as ``(B, G, A, E, D)``."""
    return cells.permute(0, 3, 1, 2, 4)


def token_major(cells: Tensor) -> Tensor:
    """View ``(B, G, A, E, D)`` as ``(B, A, E, G, D)``."""
    return cells.permute(0, 2, 3, 1, 4)


def as_pairs(*halves: tuple[Tensor, Tensor]) -> Tensor:
    """Pairs of two ``(B, A, E, G, D)``, each multiplied by its factor per head, ``(G, 1)``."""
    cells, _factor = halves[0]
    pairs = cells.new_empty(_pairs_shape(cells))
    for half, (values, factor) in zip(pairs.chunk(2, dim=-1), halves):
        torch.mul(head_major(values), factor[:, None, None], out=half)
    return pairs


def _pairs_shape(cells: Tensor) -> tuple[int, ...]:
    B, A, E, G, D = cells.shape
    return B, G, A, E, 2 * D


def _set_values_and_squares(pairs: Tensor, cells: Tensor, centre: Tensor, eps: float) -> None:
    """Fill with ``z = cells - centre`` and ``z^2 + eps``."""
    value, square = pairs.chunk(2, dim=-1)
    torch.sub(head_major(cells), head_major(centre), out=value)
    torch.addcmul(cells.new_full((), eps), value, value, out=square)


def _filter_rows(pairs: Tensor, P_y: Tensor, out: Tensor | None = None) -> Tensor:
    """``P_y`` along A."""
    B, G, A, E, K = pairs.shape
    maps = P_y.expand(B, G, A, A).reshape(-1, A, A)
    return _product(maps, pairs, (-1, A, E * K), out)


def _filter_columns(pairs: Tensor, P_x: Tensor, out: Tensor | None = None) -> Tensor:
    """``P_x`` along E."""
    B, G, A, E, K = pairs.shape
    maps = P_x[:, None].expand(B, G, A, E, E).reshape(-1, E, E)
    return _product(maps, pairs, (-1, E, K), out)


def _product(
    maps: Tensor, pairs: Tensor, shape: tuple[int, int, int], out: Tensor | None
) -> Tensor:
    out = _new_pairs(pairs, pairs.shape) if out is None else out
    torch.bmm(maps, pairs.view(shape), out=out.view(shape))
    return out


def _map_gradient(grad: Tensor, pairs: Tensor) -> Tensor:
    """``grad pairs^T`` summed over the batch and other rows: ``(B, G, ..., L, K)`` to ``(G, L, L)``.

    ``pairs`` must lie in a buffer of :func:`_new_pairs`.
    """
    length = pairs.shape[-2]
    rows = pairs.flatten(0, -3)
    missing = -length % 16
    if pairs.is_cpu and 4 * missing <= length:
        # BLAS takes 16 columns in less time than 14. What follows in memory fills up; its products are cut off.
        rows = rows.as_strided((len(rows), length + missing, rows.shape[2]), rows.stride())
    outer = torch.bmm(grad.flatten(0, -3), rows.mT)[..., :length]
    return outer.unflatten(0, (*grad.shape[:2], -1)).sum(dim=(0, 2))


def _new_pairs(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Empty pairs ``(B, G, A, E, K)`` with 15 rows of room behind."""
    size, room = math.prod(shape), 15 * shape[-2] * shape[-1]
    return like.new_empty(size + room)[:size].view(shape)
