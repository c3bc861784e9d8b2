"""Norms to compare DTN with: those of its Table 3 (ICLR 2022), and functions that replace a norm (DyT, Derf)."""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from mmlape.checks import check_divisor, check_number, check_positive_int, check_rate
from mmlape.registry import MODELS
from mmlape.runtime.recompute import once_per_pass

from .base import TokenNorm


def moments(
    x: Tensor, dim: int | tuple[int, ...], present: Tensor | None = None, correction: int = 0
) -> tuple[Tensor, Tensor]:
    """Mean and variance over ``dim``, which stays with size 1, of all values or those where ``present`` is true.

    ``present`` broadcasts; both are 0 where nothing is present. ``correction`` is Bessel's, as in PyTorch.
    """
    if present is None:
        var, mean = torch.var_mean(x, dim=dim, keepdim=True, correction=correction)
        return mean, var
    absent = ~present
    count = present.expand_as(x).sum(dim=dim, keepdim=True)
    mean = x.masked_fill(absent, 0).sum(dim=dim, keepdim=True) / count.clamp(min=1)
    squares = (x - mean).masked_fill(absent, 0).square().sum(dim=dim, keepdim=True)
    return mean, squares / (count - correction).clamp(min=1)


def instance_moments(x: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance over tokens, ``(B, 1, C)``; the variance of a single token is 0."""
    return moments(x, 1, present, correction=min(1, x.shape[1] - 1))


def subtract_and_divide(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps)``."""
    return (x - mean) * (var + eps).rsqrt()


def check_groups(num_groups: int | str, num_features: int, num_heads: int | None = None) -> int:
    """Return ``num_groups``, for ``'heads'`` ``num_heads``, if it divides ``num_features``; else raise."""
    groups = num_heads if num_groups == 'heads' else num_groups
    if groups is None:
        raise ValueError(
            "num_groups='heads' needs num_heads, which a network passes to the norms of its blocks"
        )
    return check_divisor('num_groups', groups, 'num_features', num_features)


@MODELS.register_module()
class TokenIN(TokenNorm):
    """InstanceNorm: each channel by its mean and variance over the tokens of an image (eq. 3).

    The variance is unbiased, as in the published comparison; of a single token it is 0.
    """

    mixes_tokens = True

    def standardise(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Standardise over N."""
        return subtract_and_divide(x, *instance_moments(x, present), self.eps)

    standardise_present = standardise


@MODELS.register_module()
class TokenGN(TokenNorm):
    """GroupNorm: each group of channels by its mean and variance over the group and the tokens of an image.

    Args:
        num_features, eps: As in :class:`TokenNorm`.
        num_groups: Groups of neighbouring channels; must divide ``C``. ``'heads'`` for as many as the attention has
            heads, as in the published comparison. Default 4.
        num_heads: Heads, for ``num_groups='heads'``. Default None: a network passes those of its attention.

    Raises:
        ValueError: If a value is out of range, ``num_groups`` does not divide ``C``, or there are no heads.
    """

    mixes_tokens = True
    by_head = True

    def __init__(
        self,
        num_features: int,
        num_groups: int | Literal['heads'] = 4,
        eps: float = 1e-5,
        num_heads: int | None = None,
    ) -> None:
        super().__init__(num_features, eps)
        self.num_groups = check_groups(num_groups, num_features, num_heads)

    def standardise(self, x: Tensor) -> Tensor:
        """Standardise over N and the channels of a group."""
        if x.shape[0] * x.shape[1] == 1:  # PyTorch's raises where a group has one channel
            return self.standardise_present(x, torch.ones_like(x[..., :1], dtype=torch.bool))
        return F.group_norm(x.transpose(1, 2), self.num_groups, eps=self.eps).transpose(1, 2)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Standardise over present tokens and the channels of a group."""
        groups = x.unflatten(2, (self.num_groups, -1))
        mean, var = moments(groups, (1, 3), present.unsqueeze(3))
        return subtract_and_divide(groups, mean, var, self.eps).flatten(2)


@MODELS.register_module()
class TokenBN(TokenNorm):
    """BatchNorm: each channel by its mean and variance over all tokens of the batch, running ones in evaluation.

    Statistics are those of one process; they are not synchronised. The variance of a single token is 0.

    Args:
        num_features, eps: As in :class:`TokenNorm`.
        momentum: Share of the newest batch in the running statistics. Default 0.1.

    Raises:
        ValueError: If a value is out of range.
    """

    mixes_tokens = True
    keeps_statistics = True
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps)
        self.momentum = check_rate('momentum', momentum, with_one=True)
        self.register_buffer('running_mean', torch.zeros(num_features))
        self.register_buffer('running_var', torch.ones(num_features))
        self.register_buffer('num_batches_tracked', torch.tensor(0))

    def standardise(self, x: Tensor) -> Tensor:
        """Standardise over B and N."""
        if self.training and x.shape[0] * x.shape[1] == 1:  # PyTorch's raises
            return self.standardise_present(x, torch.ones_like(x[..., :1], dtype=torch.bool))
        # Copies: the buffers may be of another dtype, and must not change in a recomputation.
        mean, var = self._running(x.dtype)
        out = F.batch_norm(
            x.flatten(0, 1), mean, var, training=self.training, momentum=self.momentum, eps=self.eps
        )
        if self.training:
            once_per_pass(lambda: self._count(mean, var))
        return out.view_as(x)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Standardise over present tokens of the batch."""
        if not self.training:
            return self.standardise(x)
        mean, var = (value.flatten() for value in moments(x, (0, 1), present))
        count = present.sum().to(x.dtype)
        unbiased = var * (count / (count - 1).clamp(min=1))
        running = [
            old.lerp_(new.detach(), self.momentum)
            for old, new in zip(self._running(x.dtype), (mean, unbiased))
        ]
        once_per_pass(lambda: self._count(*running))
        return subtract_and_divide(x, mean, var, self.eps)

    def _running(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        copy = self.training
        return self.running_mean.to(dtype, copy=copy), self.running_var.to(dtype, copy=copy)

    def _count(self, mean: Tensor, var: Tensor) -> None:
        self.running_mean.copy_(mean)
        self.running_var.copy_(var)
        self.num_batches_tracked.add_(1)


@MODELS.register_module()
class ScaleNorm(TokenNorm):
    """ScaleNorm (IWSLT 2019): ``weight x / max(|x|, eps)``, here with a weight per channel, as in DTN's comparison
    (ICLR 2022, Table 7b). They start at ``sqrt(C)``, so that tokens leave with that length, as they leave a LayerNorm.

    Args:
        num_features: Channels ``C``.
        eps: Least length divided by. Default 1e-5.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps)
        self.register_parameter('bias', None)
        nn.init.constant_(self.weight, math.sqrt(num_features))

    def standardise(self, x: Tensor) -> Tensor:
        """Divide by the length over C."""
        return F.normalize(x, dim=-1, eps=self.eps)


@MODELS.register_module()
class PowerNorm(TokenNorm):
    """Divide each channel by a running root mean square over the tokens of batches; no mean is subtracted.

    In training, the first ``warmup_iters`` calls divide by the batch's own mean square, later ones by the running one
    of the calls before; the gradient then subtracts its component along the output, a running mean too (ICML 2020,
    Algorithm 2). First, each group of a token's channels is divided by its root mean square, as published.

    Args:
        num_features: Channels ``C``.
        num_groups: Groups of that first step; must divide ``C``. ``'heads'`` for as many as the attention has heads, as
            in DTN's comparison (ICLR 2022, Table 3). Default 4.
        warmup_iters: Training calls that use the batch's statistics. Default 10000, as published with PowerNorm; DTN's
            comparison has 3000.
        alpha_forward: Share of the past in the running mean square. Default 0.9, as published.
        alpha_backward: Share of the past in the gradient's running mean. Default 0.9, as published.
        eps: Added to mean squares. Default 1e-5.
        num_heads: Heads, for ``num_groups='heads'``. Default None: a network passes those of its attention.

    Raises:
        ValueError: If a value is out of range, ``num_groups`` does not divide ``C``, or there are no heads.
    """

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

    def standardise(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Divide by the root mean square over B and N."""
        groups = x.unflatten(2, (self.num_groups, -1))
        groups = groups * (groups.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        x = groups.flatten(2)
        if not self.training:
            return x * (self.running_square.to(x.dtype) + self.eps).rsqrt()
        square = once_per_pass(lambda: self._step(x.detach(), present))
        scale = (square + self.eps).rsqrt()
        return _PowerFunction.apply(x, scale, present, self.running_along, self.alpha_backward)

    standardise_present = standardise

    def _step(self, x: Tensor, present: Tensor | None) -> Tensor:
        """Update the running mean square; returns the one to divide by, ``(C,)``."""
        batch = _mean(x.square(), present)
        running = self.running_square.to(x.dtype)
        calls = self.num_calls.add_(1)
        divisor = torch.where(calls <= self.warmup_iters, batch, running)
        # During the warm-up a mean over all calls, then the running mean of that: as published.
        mean = running + (batch - running) / calls
        running = torch.where(calls < self.warmup_iters, mean, running)
        self.running_square.copy_(torch.lerp(batch, running, self.alpha_forward))
        return divisor


def _mean(x: Tensor, present: Tensor | None) -> Tensor:
    """``(C,)`` over B and N, where ``present`` ``(B, N, 1)`` is true."""
    if present is None:
        return x.mean(dim=(0, 1))
    return x.masked_fill(~present, 0).sum(dim=(0, 1)) / present.sum().clamp(min=1)


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
            rest = rest.masked_fill(~present, 0)
        grad = grad - rest
        ctx.along.add_(_mean(grad * out, present))
        return grad * scale, None, None, None, None


@MODELS.register_module()
class SwitchableNorm(TokenNorm):
    """Statistics of InstanceNorm, LayerNorm and, if asked for, BatchNorm, mixed with learned weights.

    Weights are a softmax over ``mean_weight`` and another over ``var_weight``, initially equal.

    Args:
        num_features, eps: As in :class:`TokenNorm`.
        use_bn: Mix in BatchNorm's statistics, as the TPAMI paper does; running ones in evaluation. DTN's comparison
            (ICLR 2022, Table 3) does not say which it had; its remark that DTN, compared to this norm, gets rid of
            BatchNorm suggests True. Default False.
        momentum: Share of the newest batch in the running statistics. Default 0.1.

    Raises:
        ValueError: If a value is out of range.
    """

    mixes_tokens = True
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, num_features: int, use_bn: bool = False, momentum: float = 0.1, eps: float = 1e-5
    ) -> None:
        super().__init__(num_features, eps)
        self.use_bn = self.keeps_statistics = use_bn
        self.momentum = check_rate('momentum', momentum, with_one=True)
        count = 3 if use_bn else 2
        self.mean_weight = nn.Parameter(torch.ones(count))
        self.var_weight = nn.Parameter(torch.ones(count))
        if use_bn:
            self.register_buffer('running_mean', torch.zeros(num_features))
            self.register_buffer('running_var', torch.ones(num_features))

    def standardise(self, x: Tensor, present: Tensor | None = None) -> Tensor:
        """Standardise ``(B, N, C)`` by the mixed statistics."""
        mixed = [instance_moments(x, present), moments(x, 2)]
        if self.use_bn:
            mixed.append(self._batch_moments(x, present))
        means, variances = zip(*mixed)
        mean = _mix(self.mean_weight, means)
        return subtract_and_divide(x, mean, _mix(self.var_weight, variances), self.eps)

    standardise_present = standardise

    def _batch_moments(self, x: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return mean and variance of the batch in training, running ones in evaluation, ``(C,)`` or ``(1, 1, C)``."""
        if not self.training:
            return self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        mean, var = moments(x, (0, 1), present)
        once_per_pass(lambda: self._count(mean.detach(), var.detach()))
        return mean, var

    def _count(self, mean: Tensor, var: Tensor) -> None:
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            running.lerp_(new.view(-1).to(running.dtype), self.momentum)


def _mix(weights: Tensor, values: tuple[Tensor, ...]) -> Tensor:
    shares = weights.to(values[0].dtype).softmax(dim=0)
    return sum(share * value for share, value in zip(shares, values))


@MODELS.register_module()
class DyT(TokenNorm):
    """Dynamic Tanh (CVPR 2025) instead of a norm: ``weight tanh(alpha x) + bias``, of each value by itself.

    ``alpha`` is one learned number, without weight decay. There are no statistics and no ``eps``. Infinite values
    become the limits of the function.

    Args:
        num_features: Channels ``C`` of ``weight`` (initially 1) and ``bias`` (0).
        alpha_init: Initial ``alpha``. Default 0.5, as published for vision.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If ``num_features`` or ``alpha_init`` is not positive.
    """

    no_weight_decay: tuple[str, ...] = ('alpha',)

    def __init__(self, num_features: int, alpha_init: float = 0.5) -> None:
        super().__init__(num_features)
        alpha = check_number('alpha_init', alpha_init, above=0)
        self.alpha = nn.Parameter(torch.full((1,), alpha))

    def standardise(self, x: Tensor) -> Tensor:
        """Values between -1 and 1."""
        return torch.tanh(self.alpha.to(x.dtype) * x)

    def extra_repr(self) -> str:
        return str(self.num_features)


@MODELS.register_module()
class Derf(DyT):
    """Dynamic erf (arXiv 2512.10938) instead of a norm: ``weight erf(alpha x + shift) + bias``.

    As :class:`DyT`, with another function and a second learned number, ``shift``, initially 0 and without weight decay.

    Args:
        num_features, alpha_init: As in :class:`DyT`.
    """

    no_weight_decay = ('alpha', 'shift')

    def __init__(self, num_features: int, alpha_init: float = 0.5) -> None:
        super().__init__(num_features, alpha_init)
        self.shift = nn.Parameter(torch.zeros(1))

    def standardise(self, x: Tensor) -> Tensor:
        """Values between -1 and 1."""
        return torch.erf(self.alpha.to(x.dtype) * x + self.shift.to(x.dtype))
