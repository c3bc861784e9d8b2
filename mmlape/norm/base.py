"""Token norms: ``norm(tokens, layout)``. The base class, LayerNorm and RMSNorm, and building from a config."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_eps, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast


class TokenNorm(nn.Module):
    """Base class of token norms, called as ``norm(tokens, layout)``: ``weight standardised(x) + bias``.

    A subclass writes :meth:`standardise`, which gets float32 at least and need not care about the grid; prefix tokens
    are among the tokens. One that needs places overrides ``forward(tokens, grid=None)`` instead of it; a
    :class:`~mmlape.layout.Layout` comes as ``grid`` and unpacks like the pair ``(H, W)``. The result has the dtype of
    the tokens.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.

    Attributes:
        mixes_tokens: The result for a token depends on other tokens. Such a norm overrides :meth:`standardise_present`
            too, or refuses masks. Default False.
        keeps_statistics: It has running statistics, which training changes; they are changed inside of
            :func:`~mmlape.runtime.recompute.once`. Default False; an instance may set its own.
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


@MODELS.register_module()
class LN(TokenNorm, nn.LayerNorm):
    """LayerNorm over the channels of each token, PyTorch's; it ignores the layout.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-6, the value of ViT, DeiT and ViT-Adapter (PyTorch's own is 1e-5).
    """

    extra_repr = nn.LayerNorm.extra_repr

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        check_positive_int('num_features', num_features)
        nn.LayerNorm.__init__(self, num_features, eps=check_eps(eps))
        self.num_features = num_features

    def forward(self, tokens: Tensor, grid: Layout | Grid | None = None) -> Tensor:
        """Normalise ``(B, N, C)``."""
        return nn.LayerNorm.forward(self, tokens)

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return F.layer_norm(x, self.normalized_shape, eps=self.eps)


@MODELS.register_module()
class TokenRMS(TokenNorm):
    """RMSNorm (NeurIPS 2019) over the channels of each token: ``weight x / sqrt(mean(x^2) + eps)``, without a bias.

    Args:
        num_features: Channels ``C``.
        eps: Added to the mean square. Default 1e-6.

    Raises:
        ValueError: If ``num_features`` or ``eps`` is not positive.
    """

    _abbr_ = 'rms'

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__(num_features, eps)
        self.register_parameter('bias', None)

    def standardise(self, x: Tensor) -> Tensor:
        """Over C."""
        return x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()


# Upstream norms that see one token at a time have an equal here.
_EQUALS: dict[type, type[TokenNorm]] = {nn.LayerNorm: LN}


def build_token_norm(norm_cfg: dict, num_features: int) -> TokenNorm:
    """Build a norm that is called as ``norm(tokens, layout)``.

    Args:
        norm_cfg: ``type`` and options, e.g. ``dict(type='mmlape.LN', eps=1e-6)``. ``type='LN'`` is accepted for it.
            ``requires_grad=False`` freezes the norm, as in MMCV.
        num_features: Channels ``C``.

    Raises:
        TypeError: If ``norm_cfg`` is no dict with a ``type``.
        ValueError: If the type is unknown, or names no token norm.
    """
    cls, options = norm_class(norm_cfg), dict(norm_cfg)
    del options['type']
    requires_grad = options.pop('requires_grad', True)
    return cls(num_features, **options).requires_grad_(requires_grad)


def norm_class(norm_cfg: dict) -> type[TokenNorm]:
    """The class that a ``norm_cfg`` names, by itself or by a registered name; :class:`LN` for PyTorch's LayerNorm.

    Raises:
        TypeError: If ``norm_cfg`` is no dict with a ``type``.
        ValueError: If the type is unknown, or names no subclass of :class:`TokenNorm`.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    name = norm_cfg['type']
    found = name if isinstance(name, type) else MODELS.get(name)
    cls = _EQUALS.get(found, found)
    if not (isinstance(cls, type) and issubclass(cls, TokenNorm)):
        raise ValueError(
            f'norm_cfg names {name!r}, which is no token norm: no subclass of mmlape.norm.TokenNorm. '
            "Use one of mmlape's, e.g. 'mmlape.LN'"
        )
    return cls
