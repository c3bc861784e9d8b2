"""Token norms built from a ``norm_cfg``."""

from __future__ import annotations

from typing import Any

from torch import nn

from mmlape.registry import MODELS

from .layer_norm import LN
from .token_norm import TokenNorm

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
    cls = norm_class(norm_cfg)
    options = {key: value for key, value in norm_cfg.items() if key != 'type'}
    requires_grad = options.pop('requires_grad', True)
    return cls(num_features, **options).requires_grad_(requires_grad)


def norm_class(norm_cfg: dict) -> type[TokenNorm]:
    """The class that a ``norm_cfg`` names, by itself or by a registered name; :class:`LN` for PyTorch's LayerNorm.

    Raises:
        TypeError: If ``norm_cfg`` is no dict with a ``type``.
        ValueError: If the type is unknown, or names no subclass of :class:`TokenNorm`.
    """
    name = check_norm_cfg(norm_cfg)['type']
    found = name if isinstance(name, type) else MODELS.get(name)
    cls = _EQUALS.get(found, found)
    if not (isinstance(cls, type) and issubclass(cls, TokenNorm)):
        raise ValueError(
            f'norm_cfg names {name!r}, which is no token norm: no subclass of mmlape.norm.TokenNorm. '
            "Use one of mmlape's, e.g. 'mmlape.LN'"
        )
    return cls


def check_norm_cfg(norm_cfg: Any) -> dict:
    """Return a copy of ``norm_cfg`` if it is a dict with a ``type``, else raise TypeError."""
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    return dict(norm_cfg)
