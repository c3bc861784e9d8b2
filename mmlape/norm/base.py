"""Token norms: ``norm(tokens, layout)``. The base class, LayerNorm and RMSNorm, and building from a config."""

from __future__ import annotations

from inspect import signature

import torch
from torch import Tensor, nn

from mmlape.checks import check_eps, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast


class TokenNorm(nn.Module):
    """Base class of token norms, called as ``norm(tokens, layout)``: ``weight standardised(x) + bias``.

    A subclass writes :meth:`standardise`; prefix tokens are among the tokens. One that needs positions overrides
    ``forward(tokens, grid=None)`` instead; a :class:`~mmlape.layout.Layout` comes as ``grid`` and unpacks like the pair
    ``(H, W)``. The result has the dtype of the tokens.

    Args:
        num_features: Channels ``C``.
        eps: Added to the variance. Default 1e-5.

    Attributes:
        mixes_tokens: The result for a token depends on other tokens. Such a norm overrides :meth:`standardise_present`
            too, or refuses masks. Default False.
        keeps_statistics: It has running statistics, updated inside of
            :func:`~mmlape.runtime.recompute.once_per_pass`. Default False; an instance may set its own.
        depends_on_position: Statistics depend on where tokens are; prefix tokens are normalised apart. Default False.
        by_head: It takes ``num_heads``, by default those of the attention. Default False.
        no_weight_decay: Names of children and parameters without weight decay, whatever an optimizer does with norms.
            Default none.

    Raises:
        TypeError: If a value has the wrong type.
        ValueError: If a value is out of range.
    """

    mixes_tokens: bool = False
    keeps_statistics: bool = False
    depends_on_position: bool = False
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
            grid: Their layout or grid; norms that mix tokens use its mask. Default None.

        Returns:
            As ``tokens``; at padding, anything finite.

        Raises:
            ValueError: If a mask has another shape, or this norm does not support masks.
        """
        dtype = torch.promote_types(tokens.dtype, torch.float32)
        mask = None
        if self.mixes_tokens and isinstance(grid, Layout) and grid.mask is not None:
            mask = Layout.of(tokens, grid).token_mask()
        with without_autocast(tokens.device):
            x = tokens.to(dtype)
            if mask is None:
                out = self.standardise(x)
            else:
                # Padding, whose mean and variance may be others, would overflow in half precision.
                present = mask.unsqueeze(2)
                out = self.standardise_present(x, present).masked_fill(~present, 0)
            out = out * self.weight.to(dtype)
            if self.bias is not None:
                out = out + self.bias.to(dtype)
            return out.to(tokens.dtype)

    def standardise(self, x: Tensor) -> Tensor:
        """``(B, N, C)`` without weight and bias, float32 or float64."""
        raise NotImplementedError

    def standardise_present(self, x: Tensor, present: Tensor) -> Tensor:
        """Do as :meth:`standardise`, with statistics over the tokens of ``present``, ``(B, N, 1)`` and boolean.

        Raises:
            ValueError: If the subclass does not support masks.
        """
        raise ValueError(
            f'{type(self).__name__} mixes tokens and cannot leave out padding: its layout must have no mask'
        )

    def extra_repr(self) -> str:
        return f'{self.num_features}, eps={self.eps}'


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


@MODELS.register_module()
class TokenRMS(TokenNorm):
    """RMSNorm (NeurIPS 2019) over the channels of each token: ``weight x / sqrt(mean(x^2) + eps)``, without a bias.

    Args:
        num_features: Channels ``C``.
        eps: Added to the mean square. Default 1e-6.

    Raises:
        ValueError: If ``num_features`` or ``eps`` is not positive.
    """

    def __init__(self, num_features: int, eps: float = 1e-6) -> None:
        super().__init__(num_features, eps)
        self.register_parameter('bias', None)

    def standardise(self, x: Tensor) -> Tensor:
        """Divide by the root mean square over C."""
        return x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()


def build_token_norm(norm_cfg: dict, num_features: int) -> TokenNorm:
    """The norm of ``norm_cfg`` (``type``, see :func:`norm_class`, and options) for ``num_features`` channels;
    ``requires_grad=False`` in it freezes the norm, as in MMCV."""
    cls, options = norm_class(norm_cfg), dict(norm_cfg)
    heads = signature(cls).parameters.get('num_heads')
    if heads is not None and heads.default is heads.empty and 'num_heads' not in options:
        raise ValueError(f'norm_cfg needs num_heads here, beside no attention, got {norm_cfg}')
    del options['type']
    requires_grad = options.pop('requires_grad', True)
    return cls(num_features, **options).requires_grad_(requires_grad)


def build_single_norm(option: str, norm_cfg: dict, num_features: int) -> TokenNorm:
    """Build a norm of each token alone (:func:`build_token_norm`); ValueError if it mixes tokens or sees position."""
    cls = norm_class(norm_cfg)
    if cls.mixes_tokens or cls.depends_on_position:
        raise ValueError(
            f"{option} must be a norm of each token by itself, e.g. dict(type='mmlape.LN'), got {norm_cfg}"
        )
    return build_token_norm(norm_cfg, num_features)


def norm_class(norm_cfg: dict) -> type[TokenNorm]:
    """The class in ``norm_cfg['type']``, itself or by name; :class:`LN` for PyTorch's LayerNorm and ``'LN'``.

    Raises:
        TypeError: If ``norm_cfg`` is not a dict with a ``type``.
        ValueError: If the type is unknown or not a subclass of :class:`TokenNorm`.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    name = norm_cfg['type']
    found = name if isinstance(name, type) else MODELS.get(name)
    cls = LN if found is nn.LayerNorm else found
    if not (isinstance(cls, type) and issubclass(cls, TokenNorm)):
        raise ValueError(
            f'norm_cfg names {name!r}, which is not a token norm (a subclass of mmlape.norm.TokenNorm). '
            "Use one of mmlape's, e.g. 'mmlape.LN'"
        )
    return cls
