"""DTN's normalisation on a CPU as one operator of PyTorch, ``mmlape::dtn``, in C++."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import library

# height, width, pool; eps and stabilize
_OPTIONS = 'SymInt[] windows, float eps, bool stabilize'
_INPUTS = ('x', 'P_y', 'P_x', 'mean_ratio', 'var_ratio', 'weight', 'bias')


def dtn(*inputs: Tensor, windows: tuple[int, int, int], eps: float, stabilize: bool) -> Tensor:
    """What :class:`mmlape.norm.dtn_maps.PlainDTN` computes, in C++. First-order gradients only.

    It gives the same in any number of threads.

    Args:
        *inputs: The tensors of ``PlainDTN``: x ``(B, T, G, D)``, P_y ``(G or 1, A, A)`` and P_x ``(G or 1, E, E)`` over
            ``A x E`` cells, both ratios ``(G, 1)``, weight and bias ``(G, D)``; all float32 or all float64.
        windows: Height and width of the grid in tokens, and tokens per side of a cell.
        eps: Added to variances, and to the mean square of a head.
        stabilize: Heads are divided by their root mean square first, and the token's variance is unbiased.

    Returns:
        ``(B, T, G, D)``.

    Raises:
        ValueError: If shapes or types do not fit.
    """
    return _forward(*inputs, windows, eps, stabilize)[0]


def _cells(windows: Any) -> tuple[Any, Any]:
    height, width, pool = windows
    return -(-height // pool), -(-width // pool)


def _check(inputs: Sequence[Tensor], windows: Any) -> None:
    """Refuse what the C++ function could not read."""
    x, P_y, P_x, *_ = inputs
    _B, T, G, D = x.shape
    height, width, pool = windows
    rows, columns = _cells(windows)
    maps = (len(P_y), rows, rows), (len(P_x), columns, columns)
    shapes = (x.shape, *maps, (G, 1), (G, 1), (G, D), (G, D))
    fits = all(each.shape == shape for each, shape in zip(inputs, shapes, strict=True))
    fits = fits and {len(P_y), len(P_x)} <= {1, G} and (height * width, True) == (T, pool > 0)
    if not fits or any(each.dtype != x.dtype for each in inputs):
        got = (f'{name} {tuple(each.shape)} {each.dtype}' for name, each in zip(_INPUTS, inputs))
        raise ValueError(
            'x (B, T, G, D), P_y (G or 1, A, A), P_x (G or 1, E, E), ratios (G, 1), weight and bias (G, D) of one type '
            f'and windows (H, W, pool) do not fit: got {", ".join(got)} and {tuple(windows)}'
        )


def _call(name: str, arrays: Sequence[Any], windows: Any, eps: float, stabilize: bool) -> None:
    """The C++ function of this name; the first arrays are x and the maps."""
    x, P_y, P_x, *_ = arrays
    batch, _tokens, heads, depth = x.shape
    sizes = [batch, *windows, heads, depth, len(P_y), len(P_x), int(stabilize)]
    library.call(name, x.dtype, sizes, arrays, eps)


def _statistics(x: Tensor, windows: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for what the forward pass saves: own, cells, centre and inter of the C++ source."""
    B, T, G, D = x.shape
    A, E = _cells(windows)
    pooled = (B, A, E, G, D) if windows[2] > 1 else (0,)
    shapes = (B, T, G + 2), pooled, (B, G, D), (B, G, A, E, 2, D)
    own, cells, centre, inter = map(x.new_empty, shapes)
    return own, cells, centre, inter


@torch.library.custom_op(
    'mmlape::dtn',
    mutates_args=(),
    device_types='cpu',
    schema=f'({", ".join(f"Tensor {name}" for name in _INPUTS)}, {_OPTIONS}) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The result, and statistics."""
    *inputs, windows, eps, stabilize = arguments
    _check(inputs, windows)
    *dense, bias = (each.contiguous() for each in inputs)
    x = dense[0]
    statistics, out = _statistics(x, windows), torch.empty_like(x)
    _call('dtn_forward', [*dense, *statistics, bias, out], windows, eps, stabilize)
    return out, *statistics


@torch.library.custom_op(
    'mmlape::dtn_backward',
    mutates_args=(),
    device_types='cpu',
    schema=f'(Tensor grad, Tensor[] arrays, {_OPTIONS}, bool needs_maps) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _backward(grad: Tensor, arrays: Sequence[Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of inputs, of maps zeros where they are not needed; ``arrays``: inputs but bias, and statistics."""
    *options, needs_maps = arguments
    dense = [each.contiguous() for each in arrays]
    x, P_y, P_x, mean_ratio, var_ratio, weight, *_ = dense
    to_x, *rest = map(torch.empty_like, (x, mean_ratio, var_ratio, weight, weight))
    maps: list[Tensor | None] = [None, None]
    if needs_maps:  # of each head of each image
        maps = [x.new_zeros(len(x), x.shape[2], *P.shape[1:]) for P in (P_y, P_x)]
    _call('dtn_backward', [*dense, grad.contiguous(), to_x, *maps, *rest], *options)
    to_maps = (
        torch.zeros_like(P) if each is None else each.sum(dim=0).sum_to_size(P.shape)
        for each, P in zip(maps, (P_y, P_x))
    )
    return to_x, *to_maps, *rest


@_forward.register_fake
def _(x: Tensor, *inputs: Any) -> tuple:
    return x.new_empty(x.shape), *_statistics(x, inputs[6])


@_backward.register_fake
def _(_grad: Tensor, arrays: Sequence[Tensor], *_: Any) -> tuple:
    *others, weight = arrays[:6]
    return tuple(each.new_empty(each.shape) for each in (*others, weight, weight))


def _save(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _bias, windows, eps, stabilize = inputs
    ctx.options = windows, eps, stabilize
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output[1:])


@once_differentiable
def _gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple:
    needs_maps = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    return *_backward(grad, list(ctx.saved_tensors), *ctx.options, needs_maps), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)
