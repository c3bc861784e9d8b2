"""Softmax attention on a CPU as one operator of PyTorch, ``mmlape::attention``, in C++.

PyTorch's kernel for CPUs multiplies by MKL, which leaves AVX-512 aside on processors of others than Intel; ours takes
half the time there. It is for float32 without mask and dropout; the rest, and the backward pass, are PyTorch's.
"""

from __future__ import annotations

import ctypes
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


def _dense(tensor: Tensor) -> Tensor:
    """With the channels of a token side by side."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


@torch.library.custom_op(
    'mmlape::attention',
    mutates_args=(),
    device_types='cpu',
    schema='(Tensor query, Tensor key, Tensor value, float scale) -> (Tensor, Tensor)',
)
def _forward(query: Tensor, key: Tensor, value: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """What is read, ``(B, heads, N, D)``, and logarithms of sums of exponentials, ``(B, heads, N)``."""
    if not _fit(query, key, value) or not key.shape[2]:
        got = ', '.join(f'{tuple(each.shape)} {each.dtype}' for each in (query, key, value))
        raise ValueError(
            f'query (B, heads, N, D), key and value (B, heads, M, D), M >= 1, in float32 do not fit: got {got}'
        )
    read, sums = _results(query)
    tokens = [_dense(each) for each in (query, key, value)]
    fields = [_Tokens(each.data_ptr(), *each.stride()[:3]) for each in tokens]
    batch, heads, queries, width = query.shape
    library.call(
        'attention',
        query.dtype,
        ctypes.byref(_Shape(batch, heads, queries, key.shape[2], width)),
        *map(ctypes.byref, fields),
        ctypes.c_float(scale),
        *(ctypes.c_void_p(each.data_ptr()) for each in (read, sums)),
        torch.get_num_threads(),
    )
    return read, sums


@_forward.register_fake
def _results(query: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    """Memory in which heads lie side by side, as the projection behind them needs them."""
    batch, heads, queries, width = query.shape
    read = query.new_empty(batch, queries, heads, width).transpose(1, 2)
    return read, query.new_empty(batch, queries, heads).transpose(1, 2)


def _keep(ctx: Any, inputs: tuple, output: tuple) -> None:
    *tensors, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, *output)


@once_differentiable
def _gradients(ctx: Any, grad: Tensor, _sums: Any) -> tuple:
    query, key, value, read, sums = ctx.saved_tensors
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    grads = backward(grad, query, key, value, read, sums, 0.0, False, scale=ctx.scale)
    return *grads, None


_forward.register_autograd(_gradients, setup_context=_keep)
