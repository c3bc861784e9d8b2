"""Inter-token mean and variance through a separable map, and their gradients.

B batch, G heads, A x E cells, D channels per head
P_y (G or 1, A, A) and P_x (G or 1, E, E): row-stochastic factors of the map
pairs (2, G, L, M, B, D): values and squares of all cells, along the axis L that is filtered; M is the other one.
All that is not filtered lies behind L: products with few rows and many columns are what BLAS does best here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .axis_product import axis_product, map_gradient


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
