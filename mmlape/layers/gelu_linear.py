"""GELU and the linear layer after it, of which the backward pass keeps one tensor in place of two."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function, forward_ad
from torch.nn.modules import module as hooks


def gelu_linear(act: nn.Module, hidden: Tensor, linear: nn.Module) -> Tensor:
    """``linear(act(hidden))``. Where autograd would keep both what enters GELU and what leaves it, it keeps the first
    alone; the second, the widest of a feed-forward network, is computed again in the backward pass.

    Args:
        act: Activation.
        hidden: ``(..., C)``.
        linear: What follows. One that a hook listens to, or that is no plain ``nn.Linear``, is called as it is.
    """
    if not (
        _keeps_both(hidden) and isinstance(act, nn.GELU) and _is_plain(act) and _is_plain(linear)
    ):
        return linear(act(hidden))
    weight, bias = linear.weight, linear.bias
    if (
        type(linear) is not nn.Linear
        or type(weight) is not nn.Parameter
        or not weight.requires_grad
    ):
        return linear(act(hidden))
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
        return F.linear(F.gelu(hidden, approximate=approximate), weight, bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias, _ = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        grad_hidden = grad_weight = None
        if needs_weight:
            read = F.gelu(hidden, approximate=ctx.approximate)
            grad_weight = rows.mT @ read.flatten(0, -2)
            del read  # before the gradient of the same size is made
        if needs_hidden:
            grad_hidden = torch.ops.aten.gelu_backward(
                grad @ weight, hidden, approximate=ctx.approximate
            )
        return grad_hidden, grad_weight, rows.sum(0) if needs_bias else None, None


def _keeps_both(hidden: Tensor) -> bool:
    """Whether there is a backward pass, and nobody else looks at the graph."""
    looked_at = (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )
    return not looked_at and torch.is_grad_enabled() and hidden.requires_grad


def _is_plain(module: nn.Module) -> bool:
    """Whether nothing is called when the module is, but its ``forward``."""
    own = (
        module._forward_hooks,
        module._forward_pre_hooks,
        module._backward_hooks,
        module._backward_pre_hooks,
    )
    return not (any(own) or hooks._has_any_global_hook())
