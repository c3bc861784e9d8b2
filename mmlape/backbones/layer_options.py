"""Options of backbones with one stack of layers: one value for all layers, or one for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmlape.checks import check_layers, check_positive_int
from mmlape.norm import check_norm_cfg, is_dtn

LAYER_NORM = dict(type='mmlape.LN', eps=1e-6)
# Published DTN-ViTs have it in 10 of 12 layers (DTN, ICLR 2022, appendix A.1): the class token sees the last two.
_LAYERS_WITHOUT_DTN = 2


def per_layer(name: str, value: Any, depth: int) -> list:
    """One entry per layer from one value for all, or a list of ``depth`` values."""
    if not isinstance(value, (list, tuple)):
        return [value] * depth
    if len(value) != depth:
        raise ValueError(f'{name} must have one entry for each of {depth} layers, got {value}')
    return list(value)


def linear_rates(last: float, depth: int) -> list[float]:
    """A rate for each layer, from 0 at the first to ``last`` at the last."""
    return [last * layer / max(depth - 1, 1) for layer in range(depth)]


def layer_scale_value(layer_scale: bool | float) -> float | None:
    """Initial value of a layer scale, None for no scale; True is 1."""
    if isinstance(layer_scale, bool):
        return 1.0 if layer_scale else None
    if not isinstance(layer_scale, (int, float)):
        raise TypeError(f'layer_scale must be True, False or a number, got {layer_scale!r}')
    return float(layer_scale)


def layer_norms(norm_cfg: dict | None, depth: int, num_heads: int) -> list[dict]:
    """Config of the norms of each layer, and after them of the output.

    Args:
        norm_cfg: None for ``mmlape.LN`` with eps 1e-6. Its key ``layers`` (None for all layers and the output, a number
            of first layers, or a list) says where it goes; LayerNorm is elsewhere. Without that key a norm goes
            everywhere, but DTN into all layers except the last two (the first of one or two layers).
        depth: Number of layers.
        num_heads: Heads of the attention: those of a DTN that does not name its own.
    """
    if norm_cfg is None:
        return [LAYER_NORM] * (depth + 1)
    options = check_norm_cfg(norm_cfg)
    layers = None
    if is_dtn(options):
        options.setdefault('num_heads', num_heads)
        layers = max(depth - _LAYERS_WITHOUT_DTN, 1)
    layers = options.pop('layers', layers)
    if layers is None:
        return [options] * (depth + 1)
    named = check_layers('norm_cfg layers', layers, depth)
    return [options if layer in named else LAYER_NORM for layer in range(depth + 1)]


def resolve_prefix_after(prefix_after: int | None, norms: Sequence[dict], with_prefix: bool) -> int:
    """Number of first layers without prefix tokens.

    Args:
        prefix_after: As asked for; None for the layers up to the last one with DTN, 0 where no layer follows that.
        norms: Config of the norms of each layer.
        with_prefix: Whether there are prefix tokens.

    Raises:
        ValueError: If there is nothing to join, or no layer for it.
    """
    if prefix_after is None:
        last = max((layer for layer, norm in enumerate(norms) if is_dtn(norm)), default=-1)
        return (last + 1) % len(norms) if with_prefix else 0
    check_positive_int('prefix_after', prefix_after, minimum=0, maximum=len(norms) - 1)
    if prefix_after and not with_prefix:
        raise ValueError(
            f'prefix_after={prefix_after} needs a class or distillation token '
            '(with_cls_token, with_dist_token), and there is none'
        )
    return prefix_after
