"""From a family, an architecture and a user's options to plain data: what every stage and layer is to be built of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmlape.checks import check_bool, check_keys, check_option, check_positive_int, check_rate
from mmlape.signatures import check_type

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
# Options of the network of which an arch may have defaults.
ARCH_OPTIONS = ('pre_norm', 'final_norm')
# What an arch may say besides its sizes: defaults of the options of the same name.
ARCH_PARTS = (
    *STAGE_PARTS, *LAYER_PARTS, *ARCH_OPTIONS, 'prefix', 'norm_cfg', 'norm_places', 'img_size', 'pooling'
)  # fmt: skip
PREFIX = dict(cls_token=False, dist_token=False, registers=0, after=None, across_layers=None)


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
        across_layers: Config of what makes the class token of the output from those after every layer, or None.
    """

    sizes: Mapping[str, int]
    after: int = 0
    across_layers: dict | None = None


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
    arch: str | dict | None,
    archs: Mapping[str, dict],
    sizes: Mapping[str, Any],
    override: Mapping[str, Any],
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
        raise TypeError(
            f'arch must be a dict of sizes, or a name, got {found!r} ({type(found).__name__})'
        )
    defaults = {key: value for key, value in sizes.items() if value is not ...}
    parts = {key: value for key, value in found.items() if key in ARCH_PARTS}
    rest = {key: value for key, value in found.items() if key not in parts}
    given = {key: value for key, value in override.items() if value is not None}
    return dict(check_keys('arch', {**defaults, **rest, **given}, sizes)), parts


@dataclass(frozen=True)
class Recipe:
    """All that is said about a network, by its family, its architecture and the user.

    Attributes:
        sizes: For each stage ``embed_dims``, ``depth``, ``num_heads``, and options of its parts under their names.
        family: Default configs of the parts.
        given: The user's configs, where None those of the architecture.
        short: Options of parts given by short names.
        rates: ``drop_rate``, ``attn_drop_rate`` and ``drop_path_rate``.
        norm_places: See :func:`~mmlape.backbones.options.place_norms`.
        norm_covers_output: Likewise, ``covers_output``.
    """

    sizes: Sequence[dict]
    family: Mapping[str, Any]
    given: Mapping[str, Any]
    short: Mapping[str, dict]
    rates: Mapping[str, Any]
    norm_places: NormPlaces
    norm_covers_output: bool

    def plan(self, built: Sequence[int]) -> tuple[list[StageSpec], dict]:
        """The stages to build, of which the first ``built`` layers each are wanted, and the config of the output's
        norm.

        Raises:
            ValueError: If a list has not one entry for each stage or layer, a value is out of range, or what is named
                is not built.
        """
        depths, heads = ([size[key] for size in self.sizes] for key in ('depth', 'num_heads'))
        given, plain = self.given['norm_cfg'], self.family['norm_cfg']
        norms, output_norm = place_norms(
            given, depths, heads, self.norm_places, plain, self.norm_covers_output
        )
        check_norm_is_built(given, norms, built, plain)
        layers, prefix = self._layers(norms), self._prefix(norms[-1], built[-1])
        stages = [
            self._stage(number, tuple(layers[number][:count]), prefix)
            for number, count in enumerate(built)
            if count
        ]
        joining = self.given['joining']
        if joining is not None and all(stage.position is None for stage in stages):
            raise ValueError(
                f'joining={joining} has nothing to join: the network has no position of its own, give a position too'
            )
        return stages, output_norm

    def _stage(self, number: int, layers: tuple[LayerSpec, ...], prefix: PrefixSpec) -> StageSpec:
        size = self.sizes[number]
        parts = {name: self._of_stage(name, number) for name in STAGE_PARTS}
        for name in ('joining', 'attention_position'):
            parts[name] = filtered_layers(name, parts[name], size['depth'], len(layers))
        stem = merged(
            self.family['stem'], size.get('stem'), parts.pop('stem'), self.short.get('stem')
        )
        is_last = number == len(self.sizes) - 1
        return StageSpec(
            size['embed_dims'],
            size['num_heads'],
            size['depth'],
            stem=stem,
            position=parts['position'],
            joining=parts['joining'] or dict(type='mmlape.DefaultJoining'),
            attention_position=parts['attention_position'],
            layers=layers,
            prefix=prefix if is_last else PrefixSpec({}),
        )

    def _of_stage(self, name: str, stage: int) -> dict | None:
        """The user's config, else the family's; False, or None in a list, is nothing."""
        value = self.given[name]
        if value is False and name != 'stem':
            return None
        if value is None and name != 'stem':
            value = self.family.get(name)
        config = spread(name, value, len(self.sizes), 'stages')[stage]
        typed = isinstance(config, dict) and (name == 'stem' or 'type' in config)
        if config is not None and not typed:
            raise TypeError(
                f'{name} must be a dict with a type, or a list of dicts, got {config!r}'
            )
        return config

    def _prefix(self, norms: Sequence[dict], built: int) -> PrefixSpec:
        """Prefix tokens of the last stage, of which the first ``built`` layers are."""
        options = merged(
            PREFIX, self.family.get('prefix'), self.given['prefix'], self.short.get('prefix')
        )
        check_keys('prefix', options, PREFIX)
        names = ('cls_token', 'dist_token')
        sizes = {name: 1 for name in names if check_bool(f'with_{name}', options[name])}
        registers = check_positive_int('registers', options['registers'], minimum=0)
        if registers:
            sizes['reg_token'] = registers
        if sizes and not built:
            raise ValueError(
                f'prefix tokens ({", ".join(sizes)}) are those of stage {len(self.sizes)}, which is not built: '
                'out_indices must name it'
            )
        after = resolve_prefix_after(options['after'], norms, bool(sizes))
        joined, across = sizes if after < built else {}, options['across_layers']
        check_type('across_layers', across, dict | None)
        return PrefixSpec(joined, after, across if 'cls_token' in joined else None)

    def _layers(self, norms: list[list[dict]]) -> list[list[LayerSpec]]:
        """The blocks of every stage."""
        depths = [size['depth'] for size in self.sizes]
        users = {name: per_layer(name, self.given[name], depths) for name in LAYER_PARTS}
        shorts = {
            name: [_by_layer(self.short.get(name, {}), depth) for depth in depths]
            for name in LAYER_PARTS
        }
        rates = {
            name: check_rate(name, self.rates[name])
            for name in ('drop_rate', 'attn_drop_rate', 'drop_path_rate')
        }
        paths = linear_rates(rates['drop_path_rate'], depths)

        def layer_of(stage: int, layer: int) -> LayerSpec:
            # Rates of 0 are left out: a part of somebody's own need not know them.
            common = dict(
                attention=_nonzero(
                    attn_drop_rate=rates['attn_drop_rate'], proj_drop_rate=rates['drop_rate']
                ),
                mlp=_nonzero(drop_rate=rates['drop_rate']),
                block=_nonzero(drop_path_rate=paths[stage][layer]),
            )
            size = self.sizes[stage]
            parts = {
                name: merged(
                    self.family[name],
                    spread(name, size.get(name), size['depth'], 'layers')[layer],
                    common[name],
                    users[name][stage][layer],
                    shorts[name][stage][layer],
                )
                for name in LAYER_PARTS
            }
            # Parts of another type than the family's have the network's rates too.
            parts = {name: {**common[name], **options} for name, options in parts.items()}
            # Hidden channels are a size of the architecture, whatever the type of the network that has them.
            parts['mlp'] = {**size.get('mlp', {}), **parts['mlp']}
            return LayerSpec(norm=norms[stage][layer], **parts)

        return [
            [layer_of(stage, layer) for layer in range(depth)] for stage, depth in enumerate(depths)
        ]


def _by_layer(options: Mapping[str, Any], depth: int) -> list[dict]:
    """Short options of a part: a list has one value for each layer."""
    values = {name: spread(name, value, depth, 'layers') for name, value in options.items()}
    return [{name: entries[layer] for name, entries in values.items()} for layer in range(depth)]


def _nonzero(**rates: float) -> dict[str, float]:
    return {name: rate for name, rate in rates.items() if rate}
