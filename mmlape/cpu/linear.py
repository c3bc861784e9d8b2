"""Products of matrices by oneDNN, on processors where PyTorch's own library is slower.

PyTorch multiplies float32 matrices by MKL, which leaves AVX-512 aside on processors of others than Intel; oneDNN does
not. Graphs of ``torch.compile`` hold it as ``mmlape::linear``; whatever traces, transforms or counts takes PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from mmlape.runtime.private import has_onednn_linear, onednn_linear
from mmlape.runtime.tracing import is_eager, is_exporting

# Multiplications below which the call itself takes longer than is saved.
FEW = 2**21


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``F.linear(x, weight, bias)``, differentiable any number of times."""
    fits = x.is_cpu and x.dtype is weight.dtype is torch.float32 and x.dim() > 1
    if not fits or torch.is_autocast_enabled('cpu'):
        return F.linear(x, weight, bias)
    if torch.compiler.is_compiling():
        return F.linear(x, weight, bias) if is_exporting() else _in_a_graph(x, weight, bias)
    if not is_eager(x, weight) or x.numel() * weight.shape[0] < FEW:
        return F.linear(x, weight, bias)
    return (_Linear.apply if torch.is_grad_enabled() else _onednn)(x, weight, bias)


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
    rows, columns = grad.flatten(0, -2), x.flatten(0, -2)
    to_weight = None
    if needs_weight:  # oneDNN reads the left matrix row by row: the smaller one is copied for that
        smaller = rows.shape[1] <= columns.shape[1]
        left, right = (rows, columns) if smaller else (columns, rows)
        to_weight = multiply(left.mT, right.mT, None)
        to_weight = to_weight if smaller else to_weight.mT
    to_x = multiply(grad, weight.mT, None) if needs_x else None
    return to_x, to_weight, rows.sum(0) if needs_bias else None


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if not (weight.is_contiguous() or weight.mT.is_contiguous()):
        weight = weight.contiguous()  # oneDNN takes a hundred times as long with gaps between rows
    return onednn_linear(x, weight, bias)


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


def _save(ctx: Any, inputs: tuple, output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


_in_a_graph.register_autograd(
    lambda ctx, grad: _gradients(ctx, grad, _in_a_graph), setup_context=_save
)


@cache
def is_faster_here() -> bool:
    """Whether PyTorch multiplies by MKL on a processor with AVX-512 that is not Intel's, and has oneDNN."""
    return (
        torch.backends.mkl.is_available()
        and torch.backends.cpu.get_cpu_capability() == 'AVX512'
        and 'GenuineIntel' not in processor()
        and has_onednn_linear()
    )


def processor() -> str:
    """Return text that names the processor's maker; Intel's where it is unknown, for which nothing changes."""
    known = Path('/proc/cpuinfo')
    return known.read_text(errors='replace')[:1000] if known.is_file() else 'GenuineIntel'
