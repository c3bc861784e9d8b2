"""Build the modules of a stage from its spec, after checking their options."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any

import torch
from torch import nn

from mmlape.checks import check_layers, check_number, check_options
from mmlape.layout import Grid
from mmlape.norm import TokenNorm, build_single_norm
from mmlape.position import (
    AttentionPosition,
    JoinedPosition,
    Joining,
    LaPE,
    MergedPosition,
    PositionEmbedding,
)
from mmlape.registry import MODELS
from mmlape.runtime.recompute import keeps_statistics

from .spec import LAYER_PARTS, Options, StageSpec, checked_norm

# Easily taken for one another.
_BASES = dict(position=PositionEmbedding, joining=Joining, attention_position=AttentionPosition)


def part_class(
    option: str, config: Options, sizes: Options | None = None, checked: dict | None = None
) -> Any:
    """The class of a part after a check of its options, which must leave out the ``sizes`` that the network sets.

    ``checked`` is a dict by which equal configs of neighbouring layers are checked once.

    Raises:
        ValueError: If the type is unknown or of another part, a value is out of range, or contradicts the network's
            sizes.
        TypeError: If there is no type, or an option is unknown or has the wrong type.
    """
    known, cls = (checked or {}).get(option, (None, None))
    if cls is not None and known == config:
        return cls
    if not isinstance(config, Mapping) or 'type' not in config:
        raise TypeError(f"{option} must be a dict with the key 'type', got {config!r}")
    kind, sizes = config['type'], sizes or {}
    cls = kind if isinstance(kind, type) else MODELS.get(kind)
    base = _BASES.get(option)
    if base is not None and isinstance(cls, type) and not issubclass(cls, base):
        raise ValueError(f'{option} must be a {base.__name__} (mmlape.position), got {kind}')
    for name in config.keys() & sizes.keys():
        if config[name] is not sizes[name] and config[name] != sizes[name]:
            raise ValueError(
                f'{option}: {name} of {kind} must be left out, the network sets it; got {config[name]!r}'
            )
    check_options(cls, {name: value for name, value in config.items() if name != 'type'})
    if checked is not None:
        checked[option] = dict(config), cls
    return cls


def build_part(option: str, config: Options, sizes: Options, checked: dict | None = None) -> Any:
    """A part with the network's sizes, see :func:`part_class`."""
    cls, options = part_class(option, config, sizes, checked), {**config, **sizes}
    del options['type']
    return cls(**options)


def check_carried(specs: Sequence[StageSpec]) -> None:
    """Raise ValueError if a merged position has no stage before, or one that carries none to a joining like LaPE."""
    for number, spec in enumerate(specs):
        if spec.position is None or not issubclass(
            part_class('position', spec.position), MergedPosition
        ):
            continue
        if not number:
            raise ValueError(f'position of the first stage must be its own, got {spec.position}')
        before = specs[number - 1]
        carries = before.position and part_class('joining', before.joining).carries
        if part_class('joining', spec.joining).carries and not carries:
            raise ValueError(
                f'joining={spec.joining} of stage {number + 1} receives no position: the stage before has '
                f'position={before.position} and joining={before.joining}'
            )


def build_stage(
    spec: StageSpec, norms: Sequence[dict], in_channels: int | None, grid: Grid
) -> dict[str, Any]:
    """Modules of a stage by their name in :class:`~mmlape.backbones.Stage`; ``prefix`` is a dict of tokens.

    ``norms`` are those of each layer, ``in_channels`` those of the map of the stage before (None for the image, whose
    stem has its own), ``grid`` is that of the stage's input at the pre-training size.
    """
    dims, prefix, layers = spec.embed_dims, spec.prefix, spec.layers
    stem: dict[str, Any] = {} if in_channels is None else dict(in_channels=in_channels)
    if getattr(part_class('stem', spec.stem), 'needs_grid', False):
        stem['grid'] = grid
    modules = dict(embed=build_part('stem', spec.stem, dict(stem, embed_dims=dims)))
    grid = modules['embed'].grid_of(grid)
    modules['prefix'] = {
        name: nn.Parameter(nn.init.trunc_normal_(torch.zeros(1, size, dims), std=0.02))
        for name, size in prefix.sizes.items()
    }
    if spec.position is not None:
        joining = spec.joining
        if issubclass(
            part_class('joining', joining, dict(embed_dims=dims, depth=spec.depth)), LaPE
        ):
            joining = {'eps': norms[0].get('eps'), **joining}
        where = dict(embed_dims=dims, grid=grid, num_prefix_tokens=prefix.count)
        cls = part_class('position', spec.position, dict(where, num_tables=None))
        if issubclass(cls, MergedPosition) and keeps_statistics(modules['embed']):
            raise ValueError(
                f'mmlape.MergedPosition goes through the stem too, {type(modules["embed"]).__name__}, whose batch '
                'norms would take statistics of positions: give a list with a position for every stage'
            )
        sizes = (dims, spec.depth, grid, prefix.count)
        modules['position'] = JoinedPosition(*sizes, spec.position, joining)
    modules['attention_position'], own = _build_attention_position(spec, grid)
    modules['blocks'] = blocks = nn.ModuleList()
    checked: dict = {}
    for layer, (norm_cfg, position) in enumerate(zip(norms, own)):
        attention, fed, block = (dict(layers[name][layer]) for name in LAYER_PARTS)
        hidden = int(dims * check_number("mlp['ratio']", fed.pop('ratio'), above=0))
        own_position = {} if position is None else dict(position=position)
        heads = dict(own_position, embed_dims=dims, num_heads=spec.num_heads)
        if getattr(part_class('attention', attention, heads, checked), 'takes_layer', False):
            attn = build_part('attention', attention, dict(heads, layer=layer))
        else:
            attn = build_part('attention', attention, heads, checked)
        mlp = build_part('mlp', fed, dict(embed_dims=dims, hidden_dims=hidden), checked)
        for part, config in ((attn, attention), (mlp, fed)) if prefix.sizes else ():
            if layer >= prefix.after and not getattr(part, 'takes_prefix', True):
                raise ValueError(
                    f'prefix tokens ({", ".join(prefix.sizes)}) need attention without spatial reduction '
                    f'(sr_ratio 1) and no mmlape.ConvMlp in their stage, got {config}'
                )
        parts = dict(embed_dims=dims, attn=attn, mlp=mlp, norm_cfg=norm_cfg)
        cls = part_class('block', block, parts, checked)
        del block['type']
        blocks.append(cls(**{**block, **parts}))
    return modules


def _build_attention_position(
    spec: StageSpec, grid: Grid
) -> tuple[AttentionPosition | None, list[AttentionPosition | None]]:
    """Positions inside the attention: one for all layers or None, and one or None for each layer."""
    own: list[AttentionPosition | None] = [None] * spec.depth
    if spec.attention_position is None:
        return None, own
    options = dict(spec.attention_position)
    layers = options.pop('layers', None)
    named = check_layers('attention_position layers', layers, spec.depth)
    sizes: dict = dict(embed_dims=spec.embed_dims, num_heads=spec.num_heads, grid=grid)
    cls, count = part_class('attention_position', options), spec.prefix.count
    for layer in named:
        kind = spec.layers['attention'][layer]['type']
        attention = kind if isinstance(kind, type) else MODELS.get(kind)
        if not getattr(attention, 'takes_position', True):
            raise ValueError(
                f'{kind} takes no position inside the attention: leave attention_position out, got {options}'
            )
        if cls.changes_queries and not getattr(attention, 'takes_changed_queries', True):
            raise ValueError(
                f'{kind} takes a position that is added to scores, e.g. mmlape.RelativePositionBias, got {options}'
            )
    shared = getattr(cls, 'shared', False)
    if shared and len(named) != spec.depth:
        raise ValueError(f'{options["type"]} serves all layers of a stage, got layers={layers}')
    for layer in named[:1] if shared else named:
        sizes.update(num_prefix_tokens=count if layer >= spec.prefix.after or shared else 0)
        if not shared:
            sizes.update(window_size=_window_of(spec.layers['attention'][layer]))
        part_class('attention_position', options, sizes)
        own[layer] = cls(**{**{k: v for k, v in options.items() if k != 'type'}, **sizes})
    return (own[0], [None] * spec.depth) if shared else (None, own)


def _window_of(attention: Options) -> int | Grid | None:
    """Return the window of an attention layer: as configured, else its class's default; None for global attention."""
    kind = attention['type']
    options = signature(kind if isinstance(kind, type) else MODELS.get(kind)).parameters
    default = options['window_size'].default if 'window_size' in options else None
    return attention.get('window_size', default)


def build_first_norm(
    config: dict | bool, plain: dict, embed_dims: int, counts: str
) -> TokenNorm | None:
    """The norm of tokens that enter the first layer, ``plain`` for True, None for False. Prefix tokens that enter later
    pass it alone."""
    if config is False:
        return None
    if counts != 'layers':
        raise ValueError(f'pre_norm={config} is for networks counted by layers')
    config = plain if config is True else config
    checked_norm(config)
    return build_single_norm('pre_norm', config, embed_dims)


def build_across_layers(spec: StageSpec, shown: bool) -> nn.Module | None:
    """Build the module that computes the class token of the output from those after every layer; None if the output
    does not show it."""
    config = spec.prefix.across_layers
    if config is None:
        return None
    part_class('across_layers', config)
    if not shown:
        return None
    sizes: dict = dict(embed_dims=spec.embed_dims, num_layers=spec.depth - spec.prefix.after)
    defaults = dict(
        num_heads=spec.num_heads,
        hidden_dims=int(spec.embed_dims * spec.layers['mlp'][-1]['ratio']),
    )
    return build_part('across_layers', {**defaults, **config}, sizes)


def init_convolution(module: nn.Module) -> None:
    """Initial values of a convolution by its fan-out, as in PVTv2 and ViT-Adapter."""
    if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
        # PyTorch's kaiming_normal_ does not divide the fan-out by the groups.
        fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
        nn.init.normal_(module.weight, std=math.sqrt(2.0 / fan_out))
        if module.bias is not None:
            nn.init.zeros_(module.bias)
