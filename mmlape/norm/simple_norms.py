"""Normalisers that DTN is compared with (ICLR 2022, Table 3): InstanceNorm, GroupNorm, BatchNorm, ScaleNorm.

B batch, N tokens (prefix tokens included), C channels
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_rate
from mmlape.recompute import once
from mmlape.registry import MODELS

from .token_norm import (
    TokenNorm,
    check_groups,
    instance_moments,
    present_moments,
    subtract_and_divide,
)


@MODELS.register_module()
class TokenIN(TokenNorm):
    """InstanceNorm: each channel by its mean and variance over the tokens of an image (eq. 3).

    The variance is unbiased, as in the published comparison; of a single token it is 0.
    """

    _abbr_ = 'in'
    mixes_tokens = True

    def standardise(self, x: Tensor) -> Tensor:
        """Over dimension N."""
        return subtract_and_divide(x, *instance_moments(x), self.eps)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Over the tokens that are there."""
        return subtract_and_divide(x, *instance_moments(x, present), self.eps)


@MODELS.register_module()
class TokenGN(TokenNorm):
    """GroupNorm: each group of channels by its mean and variance over the group and the tokens of an image.

    Args:
        num_features: Channels ``C``.
        num_groups: Groups of neighbouring channels; must divide ``C``. ``'heads'`` for as many as the attention has
            heads, as in the published comparison. Default 4.
        eps: Added to the variance. Default 1e-5.
        num_heads: Heads, for ``num_groups='heads'``. Default None, those of the attention, which a network passes.

    Raises:
        ValueError: If a value is out of range, ``num_groups`` does not divide ``C``, or there are no heads.
    """

    _abbr_ = 'gn'
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
        """Over N and the channels of a group."""
        return F.group_norm(x.transpose(1, 2), self.num_groups, eps=self.eps).transpose(1, 2)

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Over the tokens that are there and the channels of a group."""
        groups = x.unflatten(2, (self.num_groups, -1))
        moments = present_moments(groups, present.unsqueeze(3), dim=(1, 3))
        return subtract_and_divide(groups, *moments, self.eps).flatten(2)


@MODELS.register_module()
class TokenBN(TokenNorm):
    """BatchNorm: each channel by its mean and variance over all tokens of the batch, running ones in evaluation.

    Statistics are those of one process; they are not synchronised. The variance of a single token is 0.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.
        momentum: Share of the newest batch in the running statistics. Default 0.1.

    Raises:
        ValueError: If a value is out of range.
    """

    _abbr_ = 'bn'
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
        """Over B and N."""
        if self.training and x.shape[0] * x.shape[1] == 1:  # which PyTorch's refuses
            return self.standardise_present(x, torch.ones_like(x[..., :1], dtype=torch.bool))
        # Copies: the buffers may be of another dtype, and must not change in a recomputation.
        mean, var = (self._running(name, x.dtype) for name in ('mean', 'var'))
        out = F.batch_norm(
            x.flatten(0, 1),
            mean,
            var,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        ).view_as(x)
        if self.training:
            once(lambda: self._count(mean, var))
        return out

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Over the tokens of the batch that are there."""
        if not self.training:
            return self.standardise(x)
        mean, var = (value.flatten() for value in present_moments(x, present, dim=(0, 1)))
        count = present.sum().to(x.dtype)
        unbiased = var.detach() * (count / (count - 1).clamp(min=1))
        batch = dict(mean=mean.detach(), var=unbiased)
        running = {
            name: torch.lerp(self._running(name, x.dtype), new, self.momentum)
            for name, new in batch.items()
        }
        once(lambda: self._count(**running))
        return subtract_and_divide(x, mean, var, self.eps)

    def _running(self, name: str, dtype: torch.dtype) -> Tensor:
        running = getattr(self, f'running_{name}')
        return running.to(dtype, copy=self.training)

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

    _abbr_ = 'sn'

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps)
        self.register_parameter('bias', None)
        nn.init.constant_(self.weight, math.sqrt(num_features))

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return F.normalize(x, dim=-1, eps=self.eps)
