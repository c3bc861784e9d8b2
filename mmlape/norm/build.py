"""Token norms built from a ``norm_cfg``."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from mmlape.registry import MODELS

from .dtn import DTN
from .layer_norm import LN

# Upstream norms that see one token at a time have an equal here; what needs a grid must take one.
_EQUALS = {nn.LayerNorm: LN}


def build_token_norm(norm_cfg: dict, num_features: int) -> nn.Module:
    """Build a norm that is called as ``norm(tokens, grid)``.

    Args:
        norm_cfg: ``type`` and options, e.g. ``dict(type='mmlape.LN', eps=1e-6)``. ``type='LN'`` is accepted for it.
            ``requires_grad=False`` freezes the norm, as in MMCV.
        num_features: Channels ``C``.

    Raises:
        TypeError: If ``norm_cfg`` is no dict with a ``type``.
        ValueError: If the type is unknown, or names a norm that cannot be called on tokens and a grid.
    """
    options = check_norm_cfg(norm_cfg)
    name = options.pop('type')
    requires_grad = options.pop('requires_grad', True)
    found = name if inspect.isclass(name) else MODELS.get(name)
    cls = _EQUALS.get(found, found)
    if cls is None:
        raise ValueError(f'norm_cfg names {name!r}, which is not registered (mmlape.LN is)')
    if 'grid' not in inspect.signature(cls.forward).parameters:
        raise ValueError(
            f'norm_cfg names {name!r}, which is no token norm: its forward takes no grid. '
            "Use one of mmlape's, e.g. 'mmlape.LN'"
        )
    norm = cls(num_features, **options)
    norm.requires_grad_(requires_grad)
    return norm


def check_norm_cfg(norm_cfg: Any) -> dict:
    """Return a copy of ``norm_cfg`` if it is a dict with a ``type``, else raise TypeError."""
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    return dict(norm_cfg)


def is_dtn(norm_cfg: Any) -> bool:
    """Whether a ``norm_cfg`` names :class:`DTN`, by the class or by a name of it."""
    name = norm_cfg.get('type') if isinstance(norm_cfg, dict) else None
    return DTN in (name, MODELS.get(name) if isinstance(name, str) else None)
