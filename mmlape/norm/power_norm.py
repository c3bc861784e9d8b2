"""PowerNorm (ICML 2020) as a token norm."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mmlape.checks import check_positive_int, check_rate
from mmlape.recompute import once
from mmlape.registry import MODELS

from .token_norm import TokenNorm, check_groups


@MODELS.register_module()
class PowerNorm(TokenNorm):
    """Divide each channel by a running root mean square over the tokens of batches; no mean is subtracted.

    In training, the first ``warmup_iters`` calls divide by the batch's own mean square, later ones by the running one
    of the calls before; the gradient then subtracts what it has along the output, as a running mean too (ICML 2020,
    Algorithm 2). First of all, each group of a token's channels is divided by its root mean square, as published.

    Args:
        num_features: Channels ``C``.
        num_groups: Groups of that first step; must divide ``C``. ``'heads'`` for as many as the attention has heads, as
            in DTN's comparison (ICLR 2022, Table 3). Default 4.
        warmup_iters: Training calls that use the batch's statistics. Default 10000, as published with PowerNorm; DTN's
            comparison has 3000.
        alpha_forward: Share of the past in the running mean square. Default 0.9, as published.
        alpha_backward: Share of the past in the gradient's running mean. Default 0.9, as published.
        eps: Added to mean squares. Default 1e-5.
        num_heads: Heads, for ``num_groups='heads'``. Default None, those of the attention, which a network passes.

    Raises:
        ValueError: If a value is out of range, ``num_groups`` does not divide ``C``, or there are no heads.
    """

    _abbr_ = 'pn'
    mixes_tokens = True
    keeps_statistics = True
    by_head = True
    running_square: Tensor
    running_along: Tensor
    num_calls: Tensor

    def __init__(
        self,
        num_features: int,
        num_groups: int | Literal['heads'] = 4,
        warmup_iters: int = 10000,
        alpha_forward: float = 0.9,
        alpha_backward: float = 0.9,
        eps: float = 1e-5,
        num_heads: int | None = None,
    ) -> None:
        super().__init__(num_features, eps)
        self.num_groups = check_groups(num_groups, num_features, num_heads)
        self.warmup_iters = check_positive_int('warmup_iters', warmup_iters, minimum=0)
        self.alpha_forward = check_rate('alpha_forward', alpha_forward, with_one=True)
        self.alpha_backward = check_rate('alpha_backward', alpha_backward, with_one=True)
        self.register_buffer('running_square', torch.ones(num_features))
        self.register_buffer('running_along', torch.zeros(num_features))
        self.register_buffer('num_calls', torch.tensor(0))

    def standardise(self, x: Tensor) -> Tensor:
        """Over B and N."""
        return self._standardise(x, None)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Over the tokens of the batch that are there."""
        return self._standardise(x, present.to(x.dtype))

    def _standardise(self, x: Tensor, present: Tensor | None) -> Tensor:
        groups = x.unflatten(2, (self.num_groups, -1))
        groups = groups * (groups.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        x = groups.flatten(2)
        if not self.training:
            return x * (self.running_square.to(x.dtype) + self.eps).rsqrt()
        square = once(lambda: self._step(x.detach(), present))
        scale = (square + self.eps).rsqrt()
        return _PowerFunction.apply(x, scale, present, self.running_along, self.alpha_backward)

    def _step(self, x: Tensor, present: Tensor | None) -> Tensor:
        """Count the call and update the running mean square; returns the one to divide by, ``(C,)``."""
        batch = _mean(x.square(), present)
        running = self.running_square.to(x.dtype)
        calls = self.num_calls.add_(1)
        divisor = torch.where(calls <= self.warmup_iters, batch, running)
        # During the warm-up a mean over all calls, and on top of it the running one: as published.
        mean = running + (batch - running) / calls
        running = torch.where(calls < self.warmup_iters, mean, running)
        self.running_square.copy_(torch.lerp(batch, running, self.alpha_forward))
        return divisor


def _mean(x: Tensor, present: Tensor | None) -> Tensor:
    """``(C,)`` over B and N, where ``present`` ``(B, N, 1)`` is 1 and not 0."""
    if present is None:
        return x.mean(dim=(0, 1))
    return x.masked_fill(present == 0, 0).sum(dim=(0, 1)) / present.sum().clamp(min=1)


class _PowerFunction(Function):
    """``x scale`` with PowerNorm's gradient."""

    @staticmethod
    def forward(
        ctx, x: Tensor, scale: Tensor, present: Tensor | None, along: Tensor, alpha: float
    ) -> Tensor:
        out = x * scale
        ctx.save_for_backward(out, scale, present)
        ctx.along, ctx.alpha = along, alpha
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        out, scale, present = ctx.saved_tensors
        rest = (1 - ctx.alpha) * ctx.along.to(grad.dtype) * out
        if present is not None:
            rest = rest.masked_fill(present == 0, 0)
        grad = grad - rest
        ctx.along.add_(_mean(grad * out, present))
        return grad * scale, None, None, None, None
