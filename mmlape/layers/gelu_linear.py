"""GELU and the linear layer after it, of which the backward pass keeps one tensor in place of two."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules import module as hooks

from mmlape.ops import is_looked_at, outer_product, product

from .linear import Linear


def gelu_linear(act: nn.Module, hidden: Tensor, layer: nn.Module) -> Tensor:
    """``layer(act(hidden))``. Where autograd would keep both what enters GELU and what leaves it, it keeps the first
    alone; the second, the widest of a feed-forward network, is computed again in the backward pass.

    Args:
        act: Activation.
        hidden: ``(..., C)``.
        layer: What follows. One that a hook listens to, or that is no plain ``nn.Linear``, is called as it is.
    """
    weight, bias = getattr(layer, 'weight', None), getattr(layer, 'bias', None)
    if not (
        _keeps_both(hidden)
        and isinstance(act, nn.GELU)
        and type(layer) in (nn.Linear, Linear)
        and _is_plain(act)
        and _is_plain(layer)
        and type(weight) is nn.Parameter
        and weight.requires_grad
    ):
        return layer(act(hidden))
    if weight.dtype != hidden.dtype:  # under autocast
        weight, bias = weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype)
    return _GeluLinear.apply(hidden, weight, bias, act.approximate)


class _GeluLinear(Function):
    """``F.linear(F.gelu(hidden, approximate), weight, bias)``, differentiable any number of times."""

    @staticmethod
    def forward(
        ctx, hidden: Tensor, weight: Tensor, bias: Tensor | None, approximate: str
    ) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        ctx.approximate = approximate
        return product(F.gelu(hidden, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, _ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        grad_hidden = grad_weight = None
        if needs_weight:
            read = F.gelu(hidden, approximate=ctx.approximate)
            grad_weight = outer_product(rows, read.flatten(0, -2))
            del read  # before the gradient of the same size is made
        if needs_hidden:
            grad_hidden = torch.ops.aten.gelu_backward(
                product(grad, weight.mT), hidden, approximate=ctx.approximate
            )
        return grad_hidden, grad_weight, rows.sum(0) if needs_bias else None, None


def _keeps_both(hidden: Tensor) -> bool:
    """Whether there is a backward pass, and nobody else looks at the graph."""
    return not is_looked_at() and torch.is_grad_enabled() and hidden.requires_grad


def _is_plain(module: nn.Module) -> bool:
    """Whether nothing is called when the module is, but its ``forward``."""
    own = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not (any(own) or hooks._has_any_global_hook())
