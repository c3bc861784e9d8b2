"""From a family, an architecture and a user's options to plain data: what every stage and layer is to be built of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmlape.checks import check_bool, check_keys, check_option, check_positive_int, check_rate

from .options import (
    NormPlaces,
    check_norm_is_built,
    filtered_layers,
    linear_rates,
    merged,
    per_layer,
    place_norms,
    resolve_prefix_after,
    spread,
)

# The parts of a layer, each one config for all layers, or a list.
LAYER_PARTS = ('attention', 'mlp', 'block')
# What is one config for each stage.
STAGE_PARTS = ('stem', 'position', 'joining', 'attention_position')
# What an arch may say besides its sizes: defaults of the options of the same name.
ARCH_PARTS = (*STAGE_PARTS, *LAYER_PARTS, 'prefix', 'norm_cfg', 'norm_places')
PREFIX = dict(cls_token=False, dist_token=False, registers=0, after=None)


@dataclass(frozen=True)
class LayerSpec:
    """A block: configs of its parts, which are without sizes."""

    attention: dict
    mlp: dict
    block: dict
    norm: dict


@dataclass(frozen=True)
class PrefixSpec:
    """Tokens before those of the grid.

    Attributes:
        sizes: Number of tokens by the name of their parameter, in the order of the sequence.
        after: Number of first layers of their stage without them.
    """

    sizes: Mapping[str, int]
    after: int = 0


@dataclass(frozen=True)
class StageSpec:
    """A stage.

    Attributes:
        embed_dims: Channels ``C``.
        num_heads: Heads of the attention.
        depth: Layers of the architecture, of which ``layers`` are built.
        stem: Config of what makes its tokens.
        position: Config of the embedding, or None.
        joining: Config of how it joins.
        attention_position: Config of the position inside the attention, or None.
        layers: Its blocks.
        prefix: Its prefix tokens.
    """

    embed_dims: int
    num_heads: int
    depth: int
    stem: dict
    position: dict | None
    joining: dict
    attention_position: dict | None
    layers: tuple[LayerSpec, ...]
    prefix: PrefixSpec


def find_arch(
    arch: str | dict | None, archs: Mapping[str, dict], sizes: Mapping[str, Any], override: Mapping[str, Any]
) -> tuple[dict, dict]:
    """Sizes of an architecture, and the parts that it names.

    Args:
        arch: A name in ``archs``, or a dict.
        archs: Architectures by name.
        sizes: Keys of the sizes, with the default of those that may be left out, else ``...``.
        override: Sizes in place of the architecture's.

    Raises:
        ValueError: If the name is unknown, or keys are unknown or missing.
        TypeError: If it is neither a name nor a dict.
    """
    found = archs[check_option('arch', arch, archs)] if isinstance(arch, str) else arch
    if not isinstance(found, dict):
        raise TypeError(f'arch must be a dict of sizes, or a name, got {found!r} ({type(found).__name__})')
    defaults = {key: value for key, value in sizes.items() if value is not ...}
    parts = {key: value for key, value in found.items() if key in ARCH_PARTS}
    rest = {key: value for key, value in found.items() if key not in parts}
    given = {key: value for key, value in override.items() if value is not None}
    return dict(check_keys('arch', {**defaults, **rest, **given}, sizes)), parts


def plan_stages(
    sizes: Sequence[dict],
    family: Mapping[str, Any],
    given: Mapping[str, Any],
    short: Mapping[str, dict],
    rates: Mapping[str, float],
    built: Sequence[int],
    norm_places: NormPlaces,
) -> tuple[list[StageSpec], dict]:
    """What to build.

    Args:
        sizes: For each stage ``embed_dims``, ``depth``, ``num_heads``, and options of its parts by their names.
        family: Default configs of the parts.
        given: The user's, where None those of the architecture.
        short: Options of parts given by short names.
        rates: ``drop_rate``, ``attn_drop_rate`` and ``drop_path_rate``.
        built: Number of layers of each stage that are built, 0 for stages that are not.
        norm_places: See :func:`~mmlape.backbones.options.place_norms`.

    Returns:
        The stages that are built, and the config of the norm of the output.
    """
    depths = [size['depth'] for size in sizes]
    heads = [size['num_heads'] for size in sizes]
    norms, output_norm = place_norms(given['norm_cfg'], depths, heads, norm_places)
    check_norm_is_built(given['norm_cfg'], norms, built)
    layers = _layers(sizes, family, given, short, rates, norms)
    last = sum(count > 0 for count in built) - 1
    prefix = _prefix(merged(PREFIX, family.get('prefix'), given['prefix'], short.get('prefix')))
    stages = []
    for number, (size, count) in enumerate(zip(sizes, built)):
        if not count:
            break
        own: dict = {name: _of_stage(name, given[name], family, number, len(sizes)) for name in STAGE_PARTS}
        own['joining'] = own['joining'] or dict(type='mmlape.DefaultJoining')
        for name in ('joining', 'attention_position'):
            own[name] = filtered_layers(name, own[name], size['depth'], count)
        own['stem'] = merged(
            family['stem'], size.get('stem'), _of_stage('stem', given['stem'], {}, number, len(sizes)), short.get('stem')
        )  # fmt: skip
        here = PrefixSpec({})
        if number == len(sizes) - 1 and (number == last):
            after = resolve_prefix_after(prefix.after, norms[number], bool(prefix.sizes))
            here = PrefixSpec(prefix.sizes if after < count else {}, after)
        stages.append(
            StageSpec(
                size['embed_dims'],
                size['num_heads'],
                size['depth'],
                layers=tuple(layers[number][:count]),
                prefix=here,
                **own,
            )
        )
    if prefix.sizes and last < len(sizes) - 1:
        raise ValueError(
            f'prefix tokens ({", ".join(prefix.sizes)}) are those of stage {len(sizes)}, which is not built: '
            f'out_indices must name it'
        )
    return stages, output_norm


def _layers(
    sizes: Sequence[dict],
    family: Mapping[str, Any],
    given: Mapping[str, Any],
    short: Mapping[str, dict],
    rates: Mapping[str, float],
    norms: list[list[dict]],
) -> list[list[LayerSpec]]:
    """The blocks of every stage."""
    depths = [size['depth'] for size in sizes]
    drop = check_rate('drop_rate', rates['drop_rate'])
    read = check_rate('attn_drop_rate', rates['attn_drop_rate'])
    paths = linear_rates(check_rate('drop_path_rate', rates['drop_path_rate']), depths)
    # Rates of 0 are left out: a part of somebody's own need not know them.
    common = {
        'attention': _nonzero(attn_drop_rate=read, proj_drop_rate=drop),
        'mlp': _nonzero(drop_rate=drop),
    }
    users = {name: per_layer(name, given[name], depths) for name in LAYER_PARTS}
    result: list[list[LayerSpec]] = []
    for stage, (size, depth) in enumerate(zip(sizes, depths)):
        shorts = {name: _by_layer(name, short.get(name, {}), depth) for name in LAYER_PARTS}
        result.append([])
        for layer in range(depth):
            path = _nonzero(drop_path_rate=paths[stage][layer])
            parts = {
                name: merged(
                    family[name], size.get(name), common.get(name, path), users[name][stage][layer], shorts[name][layer]
                )
                for name in LAYER_PARTS
            }  # fmt: skip
            # Hidden channels are a size of the architecture, whatever the type of the network that has them.
            parts['mlp'] = {**size.get('mlp', {}), **parts['mlp']}
            result[-1].append(LayerSpec(norm=norms[stage][layer], **parts))
    return result


def _by_layer(part: str, options: Mapping[str, Any], depth: int) -> list[dict]:
    """Short options of a part: a list has one value for each layer."""
    values = {name: spread(name, value, depth, 'layers') for name, value in options.items()}
    return [{name: entries[layer] for name, entries in values.items()} for layer in range(depth)]


def _of_stage(name: str, value: Any, family: Mapping[str, Any], stage: int, count: int) -> dict | None:
    """The user's config, else the family's; None in a list is nothing."""
    chosen = family.get(name) if value is None else value
    config = spread(name, chosen, count, 'stages')[stage]
    if config is not None and not isinstance(config, dict):
        raise TypeError(f'{name} must be a dict with a type, or a list of dicts, got {config!r}')
    return config


def _prefix(options: dict) -> PrefixSpec:
    check_keys('prefix', options, PREFIX)
    sizes = {
        name: 1 for name in ('cls_token', 'dist_token') if check_bool(f'with_{name}', options[name])
    }
    registers = check_positive_int('registers', options['registers'], minimum=0)
    return PrefixSpec({**sizes, **({'reg_token': registers} if registers else {})}, options['after'])


def _nonzero(**rates: float) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if rate}
