"""The compiled operators in this process, as ``mmlape::deformable_sampling`` and ``mmlape::dtn`` of PyTorch."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache, partial
from logging import INFO
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor
from torch.autograd.function import once_differentiable

from mmlape.runtime.private import softmax_backward

from .build import SWITCH, BuildError, binary, build, is_intact, is_wanted

_FUNCTIONS = tuple(
    f'{name}_{way}_{dtype}'
    for name in ('deformable', 'dtn')
    for way in ('forward', 'backward')
    for dtype in ('float32', 'float64')
)
_operator = partial(torch.library.custom_op, mutates_args=(), device_types='cpu')
_OF_SAMPLING = 'Tensor value, Tensor offsets, Tensor logits, Tensor? references, SymInt[] shapes'
# height, width, pool; eps and stabilize
_OF_DTN = 'SymInt[] windows, float eps, bool stabilize'
_TENSORS = ('x', 'P_y', 'P_x', 'mean_ratio', 'var_ratio', 'weight', 'bias')


@cache
def library() -> tuple[ctypes.CDLL | None, str]:
    """The compiled operators, compiled now where that was not done before, or None and why there are none.

    Raises:
        ValueError: If the environment variable ``MMLAPE_OPS`` is neither ``'0'`` (off) nor ``'1'`` (on, the default).
    """
    if not is_wanted():
        return None, f'switched off by {SWITCH}=0'
    try:
        if not is_intact(binary()):
            text = 'operators (deformable attention, DTN) are compiled for CPUs, once per machine (seconds)'
            print_log(text, logger='current', level=INFO)
        core = ctypes.CDLL(str(build()))
        for name in _FUNCTIONS:
            getattr(core, name)
    except (BuildError, OSError, AttributeError) as error:
        return None, f'{error}; see `mmlape docs install`'
    return core, ''


def call(
    name: str,
    dtype: torch.dtype,
    sizes: Sequence[int],
    arrays: Sequence[Tensor | None],
    eps: float = 0.0,
) -> None:
    """Call the C++ function of this name on dense arrays of this type, float32 or float64.

    Raises:
        RuntimeError: There are no compiled operators.
        MemoryError: There is not enough memory.
    """
    core, why = library()
    if core is None:
        raise RuntimeError(f'operators for CPUs are not there: {why}')
    function = getattr(core, f'{name}_{str(dtype).removeprefix("torch.")}')
    pointers = [None if each is None else each.data_ptr() for each in arrays]
    failed = function(
        (ctypes.c_int64 * len(sizes))(*sizes),
        ctypes.c_double(eps),
        (ctypes.c_void_p * len(pointers))(*pointers),
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f'not enough memory for the operator {name}')


@torch.compiler.assume_constant_result
def is_there() -> bool:
    """Whether compiled operators can be used. The first call may compile them."""
    return library()[0] is not None


@_operator(
    'mmlape::deformable_sampling',
    schema=f'({_OF_SAMPLING}) -> Tensor',
)
def deformable_sampling(
    value: Tensor,
    offsets: Tensor,
    logits: Tensor,
    references: Tensor | None,
    shapes: Sequence[int],
) -> Tensor:
    """Bilinear samples of maps around reference points, weighted by a softmax (Deformable DETR, ICLR 2021, eq. 3).

    It computes in float32 (float64 for such values) under autocast too, saves only its arguments for the backward
    pass, and gives the same in any number of threads.

    Args:
        value: ``(B, sum of H * W over levels, heads, D)``.
        offsets: ``(B, N, heads, levels, points, 2)``, (x, y) of samples in cells of their level, from the references;
            without references, their locations, in units of the map: inside, they are in [0, 1].
        logits: ``(B, N, heads, levels, points)``; the softmax runs over levels and points.
        references: N pairs (x, y) in [0, 1] in any shape, or None. They get no gradient.
        shapes: Height and width of each level, one after the other.

    Returns:
        ``(B, N, heads * D)``, of the type of ``value``. Outside of a map is zero; an offset that is not finite gives
        NaN.

    Raises:
        ValueError: If the shapes do not fit.
    """
    sizes, inputs, points = _sampling_inputs(value, offsets, logits, references, shapes)
    sampled = inputs[0].new_empty(len(value), offsets.shape[1], value.shape[2] * value.shape[3])
    call('deformable_forward', sampled.dtype, sizes, [*inputs, points, sampled])
    return sampled.to(value.dtype)


def _sampling_inputs(
    value: Tensor,
    offsets: Tensor,
    logits: Tensor,
    references: Tensor | None,
    shapes: Sequence[int],
) -> tuple[list[int], list[Tensor], Tensor | None]:
    """Prepare what the C++ functions read: sizes, dense arrays of one type, and the references."""
    batch, values, heads, width = value.shape
    queries, levels, points = offsets.shape[1], len(shapes) // 2, logits.shape[-1]
    samples = (batch, queries, heads, levels, points)
    cells = sum(height * across for height, across in zip(shapes[::2], shapes[1::2]))
    fits = logits.shape == samples and offsets.shape == (*samples, 2)
    fits = fits and (references is None or references.numel() == 2 * queries)
    if not fits or cells != values or len(shapes) != 2 * levels or min(shapes) < 0:
        raise ValueError(
            'value (B, sum of H * W, heads, D), offsets (B, N, heads, levels, points, 2), logits (B, N, heads, levels, '
            f'points), N references and shapes do not fit: got {tuple(value.shape)}, {tuple(offsets.shape)}, '
            f'{tuple(logits.shape)}, {None if references is None else tuple(references.shape)} and {tuple(shapes)}'
        )
    dtype = torch.promote_types(value.dtype, torch.float32)
    sizes = [batch, values, heads, width, queries, levels, points, *shapes]
    inputs = [
        value.transpose(1, 2).to(dtype).contiguous(),
        offsets.to(dtype).contiguous(),
        logits.flatten(-2).softmax(dim=-1, dtype=dtype).contiguous(),
    ]
    return sizes, inputs, None if references is None else references.to(dtype).contiguous()


@_operator(
    'mmlape::deformable_sampling_backward',
    schema=f'(Tensor grad, {_OF_SAMPLING}) -> (Tensor, Tensor, Tensor)',
)
def _sampling_backward(
    grad: Tensor, value: Tensor, offsets: Tensor, logits: Tensor, *others: Any
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of values, offsets and logits."""
    references, shapes = others
    sizes, inputs, points = _sampling_inputs(value, offsets, logits, references, shapes)
    weights = inputs[2]
    grads = to_value, to_offsets, to_weights = [torch.zeros_like(each) for each in inputs]
    arrays = [*inputs, points, grad.to(weights.dtype).contiguous(), *grads]
    call('deformable_backward', weights.dtype, sizes, arrays)
    if references is None:  # a location is in units of the map, an offset in cells
        to_offsets *= to_offsets.new_tensor(shapes).view(-1, 1, 2).flip(-1)
    to_logits = softmax_backward(to_weights, weights, -1)
    return (
        to_value.transpose(1, 2).to(value.dtype).contiguous(),
        to_offsets.to(offsets.dtype),
        to_logits.view(logits.shape).to(logits.dtype),
    )


@deformable_sampling.register_fake
def _(value: Tensor, offsets: Tensor, *_: Any) -> Tensor:
    return value.new_empty(value.shape[0], offsets.shape[1], value.shape[2] * value.shape[3])


@_sampling_backward.register_fake
def _(_grad: Tensor, value: Tensor, offsets: Tensor, logits: Tensor, *_: Any) -> tuple:
    return tuple(each.new_empty(each.shape) for each in (value, offsets, logits))


def _save_sampling(ctx: Any, inputs: tuple, output: Tensor) -> None:
    *tensors, ctx.shapes = inputs
    ctx.save_for_backward(*tensors)


def _sampling_gradients(ctx: Any, grad: Tensor) -> tuple:
    return (*_sampling_backward(grad, *ctx.saved_tensors, ctx.shapes), None, None)


deformable_sampling.register_autograd(_sampling_gradients, setup_context=_save_sampling)


def dtn(*inputs: Tensor, windows: tuple[int, int, int], eps: float, stabilize: bool) -> Tensor:
    """Compute DTN in C++ as :class:`mmlape.norm.dtn_plain.PlainDTN` does. Only first-order gradients are supported.

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
    return _dtn_forward(*inputs, windows, eps, stabilize)[0]


def _cells(windows: Any) -> tuple[Any, Any]:
    height, width, pool = windows
    return -(-height // pool), -(-width // pool)


def _check_dtn(inputs: Sequence[Tensor], windows: Any) -> None:
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
        got = (f'{name} {tuple(each.shape)} {each.dtype}' for name, each in zip(_TENSORS, inputs))
        raise ValueError(
            'x (B, T, G, D), P_y (G or 1, A, A), P_x (G or 1, E, E), ratios (G, 1), weight and bias (G, D) of one type '
            f'and windows (H, W, pool) do not fit: got {", ".join(got)} and {tuple(windows)}'
        )


def _call_dtn(name: str, arrays: Sequence[Any], windows: Any, eps: float, stabilize: bool) -> None:
    """The C++ function of this name; the first arrays are x and the maps."""
    x, P_y, P_x, *_ = arrays
    batch, _tokens, heads, depth = x.shape
    sizes = [batch, *windows, heads, depth, len(P_y), len(P_x), int(stabilize)]
    call(name, x.dtype, sizes, arrays, eps)


def _statistics(x: Tensor, windows: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Memory for what the forward pass saves: own, cells, centre and inter of the C++ source."""
    B, T, G, D = x.shape
    A, E = _cells(windows)
    pooled = (B, A, E, G, D) if windows[2] > 1 else (0,)
    shapes = (B, T, G + 2), pooled, (B, G, D), (B, G, A, E, 2, D)
    own, cells, centre, inter = map(x.new_empty, shapes)
    return own, cells, centre, inter


@_operator(
    'mmlape::dtn',
    schema=f'({", ".join(f"Tensor {name}" for name in _TENSORS)}, {_OF_DTN}) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _dtn_forward(*arguments: Any) -> tuple[Tensor, ...]:
    """The result, and statistics."""
    *inputs, windows, eps, stabilize = arguments
    _check_dtn(inputs, windows)
    *dense, bias = (each.contiguous() for each in inputs)
    x = dense[0]
    statistics, out = _statistics(x, windows), torch.empty_like(x)
    _call_dtn('dtn_forward', [*dense, *statistics, bias, out], windows, eps, stabilize)
    return out, *statistics


@_operator(
    'mmlape::dtn_backward',
    schema=f'(Tensor grad, Tensor[] arrays, {_OF_DTN}, bool needs_maps) -> '
    '(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)',
)
def _dtn_backward(grad: Tensor, arrays: Sequence[Tensor], *arguments: Any) -> tuple[Tensor, ...]:
    """Gradients of inputs, of maps zeros where they are not needed; ``arrays``: inputs but bias, and statistics."""
    *options, needs_maps = arguments
    dense = [each.contiguous() for each in arrays]
    x, P_y, P_x, mean_ratio, var_ratio, weight, *_ = dense
    to_x, *rest = map(torch.empty_like, (x, mean_ratio, var_ratio, weight, weight))
    maps: list[Tensor | None] = [None, None]
    if needs_maps:  # gradients for each head of each image
        maps = [x.new_zeros(len(x), x.shape[2], *P.shape[1:]) for P in (P_y, P_x)]
    _call_dtn('dtn_backward', [*dense, grad.contiguous(), to_x, *maps, *rest], *options)
    to_maps = (
        torch.zeros_like(P) if each is None else each.sum(dim=0).sum_to_size(P.shape)
        for each, P in zip(maps, (P_y, P_x))
    )
    return to_x, *to_maps, *rest


@_dtn_forward.register_fake
def _(x: Tensor, *inputs: Any) -> tuple:
    return x.new_empty(x.shape), *_statistics(x, inputs[6])


@_dtn_backward.register_fake
def _(_grad: Tensor, arrays: Sequence[Tensor], *_: Any) -> tuple:
    *others, weight = arrays[:6]
    return tuple(each.new_empty(each.shape) for each in (*others, weight, weight))


def _save_dtn(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, _bias, windows, eps, stabilize = inputs
    ctx.options = windows, eps, stabilize
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*tensors, *output[1:])


@once_differentiable
def _dtn_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple:
    needs_maps = ctx.needs_input_grad[1] or ctx.needs_input_grad[2]
    return *_dtn_backward(grad, list(ctx.saved_tensors), *ctx.options, needs_maps), None, None, None


_dtn_forward.register_autograd(_dtn_gradients, setup_context=_save_dtn)
