"""Normalisers that DTN is compared with (ICLR 2022, Table 3): InstanceNorm, GroupNorm, BatchNorm, ScaleNorm.

B batch, N tokens (prefix tokens included), C channels
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int, check_rate
from mmlape.registry import MODELS


class TokenNorm(nn.Module, ABC):
    """What these norms share: ``weight standardised(x) + bias``, with statistics in float32 at least.

    They ignore the grid and count prefix tokens like all others. The result has the dtype of the tokens.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = check_positive_int('num_features', num_features)
        self.eps = check_eps(eps)
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Normalise ``(B, N, C)``."""
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        with without_autocast(tokens.device):
            out = self.standardise(tokens.to(dtype)) * self.weight.to(dtype)
            if self.bias is not None:
                out = out + self.bias.to(dtype)
            return out.to(tokens.dtype)

    @abstractmethod
    def standardise(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` without weight and bias, float32 or float64."""

    def extra_repr(self) -> str:
        """Options that parameters do not show."""
        return f'{self.num_features}, eps={self.eps}'


@MODELS.register_module()
class TokenIN(TokenNorm):
    """InstanceNorm: each channel by its mean and variance over the tokens of an image (eq. 3).

    The variance is unbiased, as in the published comparison; of a single token it is 0.
    """

    _abbr_ = 'in'

    def standardise(self, x: Tensor) -> Tensor:
        """Over dimension N."""
        return subtract_and_divide(x, *instance_moments(x), self.eps)


@MODELS.register_module()
class TokenGN(TokenNorm):
    """GroupNorm: each group of channels by its mean and variance over the group and the tokens of an image.

    Args:
        num_features: Channels ``C``.
        num_groups: Groups of neighbouring channels; must divide ``C``. Default 4.
        eps: Added to the variance. Default 1e-5.

    Raises:
        ValueError: If a value is out of range or ``num_groups`` does not divide ``C``.
    """

    _abbr_ = 'gn'

    def __init__(self, num_features: int, num_groups: int = 4, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps)
        self.num_groups = check_groups(num_groups, num_features)

    def standardise(self, x: Tensor) -> Tensor:
        """Over N and the channels of a group."""
        return F.group_norm(x.transpose(1, 2), self.num_groups, eps=self.eps).transpose(1, 2)


@MODELS.register_module()
class TokenBN(TokenNorm):
    """BatchNorm: each channel by its mean and variance over all tokens of the batch, running ones in evaluation.

    Statistics are those of one process; they are not synchronised.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.
        momentum: Share of the newest batch in the running statistics. Default 0.1.

    Raises:
        ValueError: If a value is out of range.
    """

    _abbr_ = 'bn'

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__(num_features, eps)
        self.momentum = check_rate('momentum', momentum, with_one=True)
        self.register_buffer('running_mean', torch.zeros(num_features))
        self.register_buffer('running_var', torch.ones(num_features))
        self.register_buffer('num_batches_tracked', torch.tensor(0))

    def standardise(self, x: Tensor) -> Tensor:
        """Over B and N."""
        if self.training:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(
            x.flatten(0, 1),
            self.running_mean,
            self.running_var,
            training=self.training,
            momentum=self.momentum,
            eps=self.eps,
        ).view_as(x)


@MODELS.register_module()
class ScaleNorm(TokenNorm):
    """ScaleNorm (IWSLT 2019): each token to length one, ``weight x / max(|x|, eps)``, here with a weight per channel.

    Args:
        num_features: Channels ``C``.
        eps: Least length divided by. Default 1e-5.
    """

    _abbr_ = 'sn'

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__(num_features, eps)
        self.bias = None

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return F.normalize(x, dim=-1, eps=self.eps)


def without_autocast(device: torch.device) -> AbstractContextManager:
    """A region without autocast; the meta device, where shapes and costs are counted, knows none."""
    return nullcontext() if device.type == 'meta' else torch.autocast(device.type, enabled=False)


def instance_moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance over tokens, ``(B, 1, C)``; the variance of a single token is 0."""
    var, mean = torch.var_mean(x, dim=1, keepdim=True, correction=min(1, x.shape[1] - 1))
    return mean, var


def subtract_and_divide(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps)``."""
    return (x - mean) * (var + eps).rsqrt()


def check_eps(eps: float) -> float:
    """Return ``eps`` as a float if it is a number above 0, else raise TypeError or ValueError."""
    if isinstance(eps, bool) or not isinstance(eps, (int, float)):
        raise TypeError(f'eps must be a number, got {eps!r} ({type(eps).__name__})')
    if not eps > 0:
        raise ValueError(f'eps must be greater than 0, got {eps}')
    return float(eps)


def check_groups(num_groups: int, num_features: int) -> int:
    """Return ``num_groups`` if it divides ``num_features``, else raise TypeError or ValueError."""
    if num_features % check_positive_int('num_groups', num_groups):
        raise ValueError(
            'num_groups must divide num_features, '
            f'got num_groups={num_groups}, num_features={num_features}'
        )
    return num_groups
