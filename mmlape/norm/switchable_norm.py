"""Switchable normalization (TPAMI 2019) as a token norm."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmlape.checks import check_rate
from mmlape.recompute import once
from mmlape.registry import MODELS

from .token_norm import TokenNorm, instance_moments, present_moments, subtract_and_divide


@MODELS.register_module()
class SwitchableNorm(TokenNorm):
    """Statistics of InstanceNorm, LayerNorm and, if asked for, BatchNorm, mixed with learned weights.

    LayerNorm's are those of each token. Weights are a softmax over ``mean_weight`` and another over ``var_weight``,
    initially equal. Without BatchNorm, batches and training or evaluation make no difference.

    Args:
        num_features: Channels ``C``.
        use_bn: Mix BatchNorm's statistics in, as the TPAMI paper does; running ones are used in evaluation. DTN's
            comparison (ICLR 2022, Table 3) does not say which it had; its remark that DTN, compared to this norm, gets
            rid of BatchNorm suggests True. Default False.
        momentum: Share of the newest batch in the running statistics. Default 0.1.
        eps: Added to the variance. Default 1e-5.

    Raises:
        TypeError: If ``use_bn`` is no bool.
        ValueError: If a value is out of range.
    """

    _abbr_ = 'swn'
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

    def standardise(self, x: Tensor) -> Tensor:
        """By the mixed statistics."""
        return self._standardise(x, None)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """By the mixed statistics of the tokens that are there."""
        return self._standardise(x, present)

    def _standardise(self, x: Tensor, present: Tensor | None) -> Tensor:
        moments = [instance_moments(x, present), _moments(x, dim=2)]
        if self.use_bn:
            moments.append(self._batch_moments(x, present))
        means, variances = zip(*moments)
        mean = _mix(self.mean_weight, means)
        return subtract_and_divide(x, mean, _mix(self.var_weight, variances), self.eps)

    def _batch_moments(self, x: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of the batch in training, running ones in evaluation, ``(C,)`` or ``(1, 1, C)``."""
        if not self.training:
            return self.running_mean.to(x.dtype), self.running_var.to(x.dtype)
        dim = (0, 1)
        mean, var = _moments(x, dim) if present is None else present_moments(x, present, dim)
        once(lambda: self._count(mean.detach(), var.detach()))
        return mean, var

    def _count(self, mean: Tensor, var: Tensor) -> None:
        for running, new in ((self.running_mean, mean), (self.running_var, var)):
            running.lerp_(new.view(-1).to(running.dtype), self.momentum)


def _moments(x: Tensor, dim: int | tuple[int, ...]) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=dim, keepdim=True, correction=0)
    return mean, var


def _mix(weights: Tensor, values: tuple[Tensor, ...]) -> Tensor:
    shares = weights.to(values[0].dtype).softmax(dim=0)
    return sum(share * value for share, value in zip(shares, values))
