"""Products of matrices by the fastest library that PyTorch has for this processor.

PyTorch multiplies float32 matrices by MKL, which leaves AVX-512 aside on processors of others than Intel; oneDNN, which
computes its convolutions, does not and takes less than half the time. Both are in every PyTorch for x86-64. Graphs of
``torch.compile`` hold it as ``mmlape::linear``; exported files, ``torch.func`` and modes that count see PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from .build import is_wanted
from .surroundings import (
    are_floats_on_a_cpu,
    are_plain,
    is_exporting,
    is_looked_at,
    mkl_leaves_avx512_aside,
)

# Multiplications below which the call itself takes longer than is saved.
FEW = 2**21


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear``, differentiable any number of times.

    Args:
        x: ``(..., C)``.
        weight: ``(D, C)``.
        bias: ``(D)`` or None (default).

    Returns:
        ``(..., D)``.
    """
    if torch.compiler.is_compiling():
        if _is_for_graphs() and _are_matrices_on_a_cpu(x, weight):
            return _in_a_graph(x, weight, bias)
        return F.linear(x, weight, bias)
    if not _by_onednn(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        return _Linear.apply(x, weight, bias)
    return _onednn(x, weight, bias)


def outer_product(
    rows: Tensor, columns: Tensor, multiply: Callable[..., Tensor] = product
) -> Tensor:
    """``rows^T columns``, ``(R, C)`` of ``(N, R)`` and ``(N, C)``: the gradient of a weight."""
    # oneDNN reads the left matrix row by row: the smaller one is copied for that.
    if rows.shape[1] <= columns.shape[1]:
        return multiply(rows.mT, columns.mT, None)
    return multiply(columns.mT, rows.mT, None).mT


class _Linear(Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn(x, weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        return _gradients(ctx, grad, product)


def _gradients(ctx: Any, grad: Tensor, multiply: Callable[..., Tensor]) -> tuple:
    x, weight = ctx.saved_tensors
    needs_x, needs_weight, needs_bias = ctx.needs_input_grad
    rows = grad.flatten(0, -2)
    return (
        multiply(grad, weight.mT, None) if needs_x else None,
        outer_product(rows, x.flatten(0, -2), multiply) if needs_weight else None,
        rows.sum(0) if needs_bias else None,
    )


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        weight = weight.contiguous()  # oneDNN takes a hundred times as long with gaps between rows
    return _pointwise(x, weight, bias)


def _pointwise(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, 'none', [], '')


@torch.library.custom_op(
    'mmlape::linear',
    mutates_args=(),
    device_types='cpu',
    schema='(Tensor x, Tensor weight, Tensor? bias) -> Tensor',
)
def _in_a_graph(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """PyTorch's compiler takes oneDNN's operator for weights that are constants alone."""
    return _onednn(x, weight, bias) if x.numel() else F.linear(x, weight, bias)


@_in_a_graph.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def _keep(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


_in_a_graph.register_autograd(
    lambda ctx, grad: _gradients(ctx, grad, _in_a_graph), setup_context=_keep
)


@torch.compiler.assume_constant_result
def _is_for_graphs() -> bool:
    return _onednn_is_faster() and not is_exporting()


def _by_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        not is_looked_at()
        and _onednn_is_faster()
        and are_plain(x, weight)
        and _are_matrices_on_a_cpu(x, weight)
        and x.numel() * weight.shape[0] >= FEW
        and torch._C._get_mkldnn_enabled()
    )


def _are_matrices_on_a_cpu(x: Tensor, weight: Tensor) -> bool:
    """In float32."""
    return x.dim() > 1 and are_floats_on_a_cpu(x, weight)


@cache
def _onednn_is_faster() -> bool:
    """Whether this is such a processor, and ``MMLAPE_OPS`` is not ``'0'``."""
    return (
        is_wanted()
        and mkl_leaves_avx512_aside()
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, '_linear_pointwise')
    )
