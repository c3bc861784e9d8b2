"""Modules of a stage, built from its spec."""

from __future__ import annotations

from torch import nn

from mmlape.checks import check_layers, check_number
from mmlape.layers import PlainLinear, Stem
from mmlape.layout import Grid
from mmlape.norm import TokenNorm, build_token_norm
from mmlape.position import AttentionPosition, JoinedPosition
from mmlape.registry import MODELS
from mmlape.signatures import check_type

from .spec import LayerSpec, StageSpec


def build_stem(config: dict, in_channels: int, embed_dims: int, grid: Grid) -> Stem:
    """What makes the tokens of a stage from an image or map, which has the sides ``grid`` at the pre-training size."""
    sizes: dict = dict(in_channels=in_channels, embed_dims=embed_dims)
    if getattr(MODELS.get(config['type']), 'needs_grid', False):
        sizes['grid'] = grid
    return MODELS.build(dict(config, **sizes))


def build_position(spec: StageSpec, grid: Grid) -> JoinedPosition:
    """The embedding of a stage on ``grid``, and how it joins."""
    num_prefix = sum(spec.prefix.sizes.values())
    sizes = (spec.embed_dims, len(spec.layers), grid, num_prefix)
    return JoinedPosition(*sizes, spec.position, spec.joining)


def build_inside(
    spec: StageSpec, grid: Grid
) -> tuple[AttentionPosition | None, list[AttentionPosition | None]]:
    """Positions inside the attention: one that serves all layers, and one or None for each layer."""
    own: list[AttentionPosition | None] = [None] * len(spec.layers)
    if spec.attention_position is None:
        return None, own
    options = dict(spec.attention_position)
    named = check_layers('attention_position layers', options.pop('layers', None), len(own))
    for layer in named:
        attention = spec.layers[layer].attention['type']
        if not getattr(MODELS.get(attention), 'takes_position', True):
            raise ValueError(
                f'{attention} takes no position inside the attention: leave attention_position out, got {options}'
            )
    options.update(embed_dims=spec.embed_dims, num_heads=spec.num_heads, grid=grid)
    count = sum(spec.prefix.sizes.values())
    if getattr(MODELS.get(options['type']), 'shared', False):
        if len(named) != len(own):
            raise ValueError(
                f'{options["type"]} serves all layers of a stage, got layers={spec.attention_position["layers"]}'
            )
        return MODELS.build(dict(options, num_prefix_tokens=count)), own
    for layer in named:
        own[layer] = MODELS.build(
            dict(
                options,
                num_prefix_tokens=count if layer >= spec.prefix.after else 0,
                window_size=spec.layers[layer].attention.get('window_size'),
            )
        )
    return None, own


def build_blocks(spec: StageSpec, inside: list[AttentionPosition | None]) -> nn.ModuleList:
    """The blocks of a stage, with the positions inside their attention."""
    return nn.ModuleList(
        _build_block(spec, layer, position) for layer, position in zip(spec.layers, inside)
    )


def _build_block(
    spec: StageSpec, layer: LayerSpec, position: AttentionPosition | None
) -> nn.Module:
    dims = spec.embed_dims
    attention = dict(layer.attention, embed_dims=dims, num_heads=spec.num_heads)
    if position is not None:
        attention['position'] = position
    attn = MODELS.build(attention)
    if spec.prefix.sizes and not getattr(attn, 'takes_prefix', True):
        raise ValueError(
            f'prefix tokens ({", ".join(spec.prefix.sizes)}) need attention without spatial reduction '
            f"(sr_ratio 1) in their stage, got {layer.attention}"
        )
    mlp = dict(layer.mlp)
    hidden = int(dims * check_number("mlp['ratio']", mlp.pop('ratio'), above=0))
    mlp = MODELS.build(dict(mlp, embed_dims=dims, hidden_dims=hidden))
    return MODELS.build(dict(layer.block, embed_dims=dims, attn=attn, mlp=mlp, norm_cfg=layer.norm))


def build_first_norm(
    config: dict | bool, plain: dict, embed_dims: int, counts: str
) -> TokenNorm | None:
    """The norm of tokens that enter the first layer, ``plain`` for True, None for False.

    Raises:
        TypeError: If ``config`` is neither a dict nor True or False.
        ValueError: If the network is counted by stages, or the norm is not one of each token by itself, which prefix
            tokens need that join later.
    """
    check_type('pre_norm', config, dict | bool)
    if config is False:
        return None
    if counts != 'layers':
        raise ValueError(f'pre_norm={config} is for networks counted by layers')
    norm = build_token_norm(plain if config is True else config, embed_dims)
    if norm.mixes_tokens or norm.sees_places:
        raise ValueError(
            f"pre_norm must be a norm of each token by itself, e.g. dict(type='mmlape.LN'), got {config}"
        )
    return norm


def build_across_layers(spec: StageSpec) -> nn.Module | None:
    """What makes the class token of the output from those after every layer, or None for that of the last layer."""
    if spec.prefix.across_layers is None:
        return None
    sizes = dict(
        embed_dims=spec.embed_dims,
        num_heads=spec.num_heads,
        num_layers=len(spec.layers) - spec.prefix.after,
        hidden_dims=int(spec.embed_dims * spec.layers[-1].mlp['ratio']),
    )
    return MODELS.build({**sizes, **spec.prefix.across_layers})


def init_linear(module: nn.Module) -> None:
    """Initial values of linear layers as in ViT and PVT; those before a norm keep PyTorch's."""
    if isinstance(module, nn.Linear) and not isinstance(module, PlainLinear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
