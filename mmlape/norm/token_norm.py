"""What all token norms share.

B batch, N tokens (prefix tokens included), C channels
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mmlape.autocast import without_autocast
from mmlape.checks import check_eps, check_positive_int
from mmlape.layout import Grid, Layout


class TokenNorm(nn.Module):
    """Base class of token norms, called as ``norm(tokens, layout)``: ``weight standardised(x) + bias``.

    A subclass writes :meth:`standardise`, which gets float32 at least and need not care about the grid; prefix tokens
    are among the tokens. One that needs places overrides ``forward(tokens, grid=None)`` in place of it; a
    :class:`~mmlape.layout.Layout` comes as ``grid`` and unpacks like the pair ``(H, W)``. The result has the dtype of
    the tokens.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.

    Attributes:
        mixes_tokens: The result for a token depends on other tokens. Such a norm overrides :meth:`standardise_present`
            too, or refuses masks. Default False.
        keeps_statistics: It has running statistics, which training changes; they are changed inside of
            :func:`~mmlape.recompute.once`. Default False; an instance may set its own.
        sees_places: Statistics depend on where tokens are, so that prefix tokens, which are nowhere, get something
            else. Default False.
        by_head: It takes ``num_heads``; a network passes those of its attention where a config names none. Default
            False.
        no_weight_decay: Names of children and parameters that do not decay, whatever an optimizer does with norms.
            Default none.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    mixes_tokens: bool = False
    keeps_statistics: bool = False
    sees_places: bool = False
    by_head: bool = False
    no_weight_decay: tuple[str, ...] = ()

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.num_features = check_positive_int('num_features', num_features)
        self.eps = check_eps(eps)
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))

    def forward(self, tokens: Tensor, grid: Layout | Grid | None = None) -> Tensor:
        """Normalise.

        Args:
            tokens: ``(B, N, C)``.
            grid: Their layout or grid, of which only a mask counts here, for norms that mix tokens. Default None.

        Returns:
            As ``tokens``; at padding, anything finite.

        Raises:
            ValueError: If there is a mask that does not fit, or that this norm cannot respect.
        """
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        present = present_tokens(tokens, grid) if self.mixes_tokens else None
        with without_autocast(tokens.device):
            x = tokens.to(dtype)
            out = self.standardise(x) if present is None else self.standardise_present(x, present)
            out = out * self.weight.to(dtype)
            if self.bias is not None:
                out = out + self.bias.to(dtype)
            return out.to(tokens.dtype)

    def standardise(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` without weight and bias, float32 or float64."""
        raise NotImplementedError(
            f'{type(self).__name__} must have standardise(x), or a forward(tokens, grid) of its own'
        )

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """As :meth:`standardise`, with statistics over the tokens of ``present``, ``(B, N, 1)`` and boolean.

        Raises:
            ValueError: Unless a subclass writes it.
        """
        raise ValueError(
            f'{type(self).__name__} mixes tokens and cannot leave out padding: its layout must have no mask'
        )

    def extra_repr(self) -> str:
        """Options that parameters do not show."""
        return f'{self.num_features}, eps={self.eps}'


def present_tokens(tokens: Tensor, grid: Layout | Grid | None) -> Tensor | None:
    """``(B, N, 1)``, True for tokens that are no padding; None where there is no mask."""
    if not isinstance(grid, Layout) or grid.mask is None:
        return None
    mask = Layout.of(tokens, grid).token_mask()
    return None if mask is None else mask.unsqueeze(2)


def present_moments(
    x: Tensor, present: Tensor, dim: int | tuple[int, ...], unbiased: bool = False
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``x`` over ``dim``, which stays with size 1, where ``present`` is true (it broadcasts).

    Where nothing is, both are 0; so is the unbiased variance of a single value.
    """
    absent = ~present
    count = present.expand_as(x).sum(dim=dim, keepdim=True)
    mean = x.masked_fill(absent, 0).sum(dim=dim, keepdim=True) / count.clamp(min=1)
    squares = (x - mean).masked_fill(absent, 0).square().sum(dim=dim, keepdim=True)
    return mean, squares / (count - int(unbiased)).clamp(min=1)


def instance_moments(x: Tensor, present: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and unbiased variance over tokens, ``(B, 1, C)``; the variance of a single token is 0."""
    if present is not None:
        return present_moments(x, present, dim=1, unbiased=True)
    var, mean = torch.var_mean(x, dim=1, keepdim=True, correction=min(1, x.shape[1] - 1))
    return mean, var


def subtract_and_divide(x: Tensor, mean: Tensor, var: Tensor, eps: float) -> Tensor:
    """``(x - mean) / sqrt(var + eps)``."""
    return (x - mean) * (var + eps).rsqrt()


def check_groups(num_groups: int | str, num_features: int, num_heads: int | None = None) -> int:
    """Return ``num_groups``, for ``'heads'`` ``num_heads``, if it divides ``num_features``.

    Raises:
        TypeError: If it is no integer.
        ValueError: If it does not divide them, is not positive, or there are no heads.
    """
    groups = num_heads if num_groups == 'heads' else num_groups
    if groups is None:
        raise ValueError(
            "num_groups='heads' needs num_heads, which a network passes to the norms of its blocks"
        )
    count = check_positive_int('num_groups', groups)
    if num_features % count:
        raise ValueError(
            'num_groups must divide num_features, '
            f'got num_groups={count}, num_features={num_features}'
        )
    return count
