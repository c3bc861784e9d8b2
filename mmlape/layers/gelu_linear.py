"""GELU and the linear layer after it, with half of what autograd would save."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function

from mmlape.runtime.private import gelu_backward, has_hooks
from mmlape.runtime.tracing import is_eager


def gelu_linear(act: nn.Module, hidden: Tensor, layer: nn.Module) -> Tensor:
    """``layer(act(hidden))``. Where autograd would save both what enters GELU and what leaves it, it saves the first
    alone; the second, the widest tensor of a feed-forward network, is computed again in the backward pass. A layer with
    hooks or a ``forward`` of its own, or that is not a plain linear layer, is called as it is."""
    if not (torch.is_grad_enabled() and hidden.requires_grad and _can_merge(act, hidden, layer)):
        return layer(act(hidden))
    weight, bias = layer.weight, layer.bias
    if weight.dtype != hidden.dtype:  # under autocast
        weight, bias = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    product = getattr(layer, 'product', F.linear)  # that of mmlape.cpu's
    return _GeluLinear.apply(hidden, weight, bias, act.approximate, product)


def _can_merge(act: nn.Module, hidden: Tensor, layer: nn.Module) -> bool:
    """Whether the two compute nothing but GELU and a product, of a weight that has a gradient."""
    return (
        isinstance(act, nn.GELU)
        and isinstance(layer, nn.Linear)
        and (type(layer) is nn.Linear or hasattr(layer, 'product'))
        and layer.weight.requires_grad
        and is_eager(hidden, layer.weight)
        and not has_hooks(act)
        and not has_hooks(layer)
        and 'forward' not in {*vars(act), *vars(layer)}
    )


class _GeluLinear(Function):
    """``product(F.gelu(hidden, approximate), weight, bias)``, differentiable any number of times."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        approximate: str,
        product: Callable[..., Tensor],
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.approximate, ctx.product = approximate, product
        return product(F.gelu(hidden, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, *_ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        grad_hidden = grad_weight = None
        if needs_weight:
            read = F.gelu(hidden, approximate=ctx.approximate).flatten(0, -2)
            # The smaller matrix first: libraries of CPUs read the left one row by row.
            if rows.shape[1] <= read.shape[1] or not rows.is_cpu:
                grad_weight = ctx.product(rows.mT, read.mT)
            else:
                grad_weight = ctx.product(read.mT, rows.mT).mT
            del read  # before the gradient of the same size is made
        if needs_hidden:
            grad_hidden = gelu_backward(ctx.product(grad, weight.mT), hidden, ctx.approximate)
        return grad_hidden, grad_weight, rows.sum(0) if needs_bias else None, None, None
