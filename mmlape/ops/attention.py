"""Softmax attention on a CPU as one operator of PyTorch, ``mmlape::attention``, in C++.

PyTorch's kernel for CPUs multiplies by MKL, which leaves AVX-512 aside on processors of others than Intel; ours takes
half the time there. It is for float32 without mask and dropout; the rest is PyTorch's.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import library
from .surroundings import (
    are_floats_on_a_cpu,
    are_plain,
    is_exporting,
    is_looked_at,
    mkl_leaves_avx512_aside,
)

# Keys below which PyTorch's kernel is as fast: ours puts them into another order first.
FEW = 128
# The same for gradients.
FEW_FOR_GRADIENTS = 256


def attention(query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
    """``F.scaled_dot_product_attention``, which can be derived once here.

    Args:
        query: ``(B, heads, N, D)``.
        key: ``(B, heads, M, D)``.
        value: ``(B, heads, M, D)``.
        scale: What scores are multiplied by.

    Returns:
        ``(B, heads, N, D)``.
    """
    if _is_ours(query, key, value):
        return _forward(query, key, value, scale)[0]
    return F.scaled_dot_product_attention(query, key, value, scale=scale)


def _is_ours(query: Tensor, key: Tensor, value: Tensor) -> bool:
    if torch.compiler.is_compiling():
        return _is_for_graphs() and _fit(query, key, value)
    return (
        not is_looked_at()
        and _is_faster()
        and are_plain(query, key, value)
        # Modes that listen to PyTorch's function.
        and not torch._C._len_torch_function_stack()
        and key.shape[-2] >= FEW
        and _fit(query, key, value)
    )


@torch.compiler.assume_constant_result
def _is_for_graphs() -> bool:
    return _is_faster() and not is_exporting()


def _is_faster() -> bool:
    # Who asks PyTorch for another kernel than this one gets it.
    return _is_for_this_processor() and torch._C._get_flash_sdp_enabled()


@cache
def _is_for_this_processor() -> bool:
    """Whether this is such a processor, and the compiler made a variant for it."""
    core, _ = library.library() if mkl_leaves_avx512_aside() else (None, '')
    return core is not None and core.attention_lanes() == 16


def _fit(query: Tensor, key: Tensor, value: Tensor) -> bool:
    return (
        are_floats_on_a_cpu(query, key, value)
        and query.dim() == 4
        and key.shape == value.shape
        and query.shape[:2] == key.shape[:2]
        and query.shape[3] == key.shape[3]
    )


class _Shape(ctypes.Structure):
    """``Shape`` of the C++ source."""

    _fields_ = [(name, ctypes.c_int64) for name in ('batch', 'heads', 'queries', 'keys', 'width')]


class _Tokens(ctypes.Structure):
    """``Tokens`` of the C++ source."""

    _fields_ = [
        ('data', ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ('of_batch', 'of_head', 'of_token')),
    ]


def _check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Refuse what the C++ functions could not read."""
    if not _fit(query, key, value) or not key.shape[2]:
        got = ', '.join(f'{tuple(each.shape)} {each.dtype}' for each in (query, key, value))
        raise ValueError(
            f'query (B, heads, N, D), key and value (B, heads, M, D), M >= 1, in float32 do not fit: got {got}'
        )


def _call(
    name: str, inputs: Sequence[Tensor], scale: float, *more: Tensor, results: Sequence[Tensor]
) -> None:
    """The C++ function of this name for query, key and value, with further arrays, dense but for the first."""
    query, key, _ = inputs
    batch, heads, queries, width = query.shape
    # The channels of a token side by side.
    tokens = [each if each.stride(-1) == 1 else each.contiguous() for each in (*inputs, *more[:1])]
    fields = [_Tokens(each.data_ptr(), *each.stride()[:3]) for each in tokens]
    library.call(
        name,
        query.dtype,
        ctypes.byref(_Shape(batch, heads, queries, key.shape[2], width)),
        *map(ctypes.byref, fields[:3]),
        ctypes.c_float(scale),
        torch.get_num_threads(),
        *map(ctypes.byref, fields[3:]),
        *(ctypes.c_void_p(each.data_ptr()) for each in (*more[1:], *results)),
    )


def _side_by_side(tokens: Tensor) -> Tensor:
    """Memory for as many, in which heads lie side by side, as the projections around attention need them."""
    batch, heads, count, width = tokens.shape
    return tokens.new_empty(batch, count, heads, width).transpose(1, 2)


@torch.library.custom_op(
    'mmlape::attention',
    mutates_args=(),
    device_types='cpu',
    schema='(Tensor query, Tensor key, Tensor value, float scale) -> (Tensor, Tensor)',
)
def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What is read, ``(B, heads, N, D)``, and logarithms of sums of exponentials, ``(B, heads, N)``."""
    _check(query, key, value)
    if key.shape[2] < FEW:  # in a graph, which is for any number
        pytorchs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return pytorchs(query, key, value, scale=scale)
    read, sums = _results(query)
    _call('attention', (query, key, value), scale, results=(read, sums))
    return read, sums


@torch.library.custom_op(
    'mmlape::attention_backward',
    mutates_args=(),
    device_types='cpu',
    schema='(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor read, Tensor sums, float scale) '
    '-> (Tensor, Tensor, Tensor)',
)
def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    read: Tensor,
    sums: Tensor,
    scale: float,
) -> tuple[Tensor, ...]:
    """Gradients of queries, keys and values."""
    if key.shape[2] < FEW_FOR_GRADIENTS:
        pytorchs = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return pytorchs(grad, query, key, value, read, sums, 0.0, False, scale=scale)
    results = _gradients_of(query, key, value)
    # Of each query: the power of two that its exponentials sum up to, and what its gradient has in common.
    level = sums.contiguous() / math.log(2)
    mean = (grad * read).sum(dim=-1)
    inputs = (query, key, value)
    _call('attention_backward', inputs, scale, grad, level, mean.contiguous(), results=results)
    return results


@_forward.register_fake
def _results(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    batch, heads, queries, _width = query.shape
    return _side_by_side(query), query.new_empty(batch, queries, heads).transpose(1, 2)


def _gradients_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _side_by_side(query), _side_by_side(key), _side_by_side(value)


@_backward.register_fake
def _(_grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple:
    return _gradients_of(query, key, value)


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


@once_differentiable
def _gradients(ctx: Any, grad: Tensor, _sums: Any) -> tuple:
    return *_backward(grad, *ctx.saved_tensors, ctx.scale), None


_forward.register_autograd(_gradients, setup_context=_keep)
