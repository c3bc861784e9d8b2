"""Products of maps along an axis with what lies on it, without the weights that are zero.

G heads, L length of the axis, M tensors that share a map (values, squares)
Row i of a map (G or 1, L, L) says how much each place counts for place i. Heads that look at their neighbourhood, or to
one end of the axis, have zeros elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
