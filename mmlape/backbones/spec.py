"""Specs of every stage and layer: options as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

from mmlape.checks import (
    check_bool,
    check_keys,
    check_layers,
    check_options,
    check_positive_int,
    check_rate,
)
from mmlape.norm import TokenNorm, norm_class

# Default of an option that the architecture or the family sets.
UNSET: Any = ...
LAYER_NORM = dict(type='mmlape.LN', eps=1e-6)
# Default options of a norm (its layers, heads, ...) by its type: for all stages, or one for each.
NormLayers = Mapping[str, 'dict | Sequence[dict | None]']
# Parts with a config for each layer, and for each stage.
LAYER_PARTS = ('attention', 'mlp', 'block')
STAGE_PARTS = ('position', 'joining', 'attention_position')
# Options that an arch may hold besides its sizes.
ARCH_PARTS = (
    'stem', *STAGE_PARTS, *LAYER_PARTS, 'pre_norm', 'final_norm', 'prefix', 'norm_cfg', 'norm_places', 'img_size',
    'pooling',
)  # fmt: skip
PREFIX = dict(cls_token=False, dist_token=False, registers=0, after=None, across_layers=None)
Options = Mapping[str, Any]
Layers = list[list[dict]]


@dataclass(frozen=True)
class Parts:
    """Options of parts under names of a family's own (``patch_size``), which override the configs of the parts;
    :data:`UNSET` if not given. Of layers, a list has one value for each. ``sizes`` override the architecture's, unless
    None."""

    sizes: Options = field(default_factory=dict)
    stem: Options = field(default_factory=dict)
    attention: Options = field(default_factory=dict)
    mlp: Options = field(default_factory=dict)
    block: Options = field(default_factory=dict)
    prefix: Options = field(default_factory=dict)


NO_PARTS = Parts()


@dataclass(frozen=True)
class PrefixSpec:
    """Tokens before those of the grid.

    Attributes:
        sizes: Number of tokens by the name of their parameter, in the order of the sequence.
        after: Number of first layers of their stage without them.
        across_layers: Config of the module that computes the class token of the output from those after every layer,
            or None.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    after: int = 0
    across_layers: dict | None = None

    @property
    def count(self) -> int:
        """Number ``P`` of tokens."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class StageSpec:
    """Configs of a stage's parts, without sizes; ``layers`` has one for each of ``depth`` layers by the part's name."""

    embed_dims: int
    num_heads: int
    depth: int
    stem: dict
    position: dict | None
    joining: dict
    attention_position: dict | None
    layers: Mapping[str, list[dict]]
    prefix: PrefixSpec


def override(default: Any, config: Any, with_none: bool = False) -> Any:
    """A user's config of a part (or a list of configs, or None) over a default: options that it leaves out stay, unless
    its ``type`` is another one. Anything else replaces the default; so does None in a list if ``with_none``."""
    if config is None:
        return default
    if isinstance(config, (list, tuple)) and isinstance(default, Mapping):
        return [
            None if with_none and entry is None else override(default, entry) for entry in config
        ]
    if not isinstance(config, Mapping) or not isinstance(default, Mapping):
        return config
    same = config.get('type', default.get('type')) == default.get('type')
    return {**default, **config} if same else config


def merged(*configs: Mapping | None) -> dict:
    """Options of a part: later configs :func:`override` earlier ones."""
    result: dict = {}
    for config in configs:
        if config:
            known = {name: value for name, value in config.items() if value is not UNSET}
            result = override(result, known)
    return result


def as_list(name: str, value: Any, count: int, kind: str) -> list:
    """Return one entry for each of ``count`` ``kind`` (stages, layers) from one for all, or from a list of as many."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f'{name} must have one entry for each of {count} {kind}, got {value}')
    return list(value)


def _of_layers(name: str, value: Any, depth: int) -> list:
    """An option of a part for each of ``depth`` layers.

    Two integers are always one window: JSON and ``--cfg-options`` turn the tuple ``(7, 14)`` into a list.
    """
    if name != 'window_size' or not isinstance(value, (list, tuple)):
        return as_list(name, value, depth, 'layers')
    if len(value) == 2 and all(isinstance(side, Integral) for side in value):
        return [value] * depth
    if len(value) != depth:
        raise ValueError(
            f'window_size must be one window, an integer or a pair (height, width), or a list with one window for '
            f'each of {depth} layers, e.g. [[7, 7], [14, 14]], got {value}'
        )
    return list(value)


def layers_of_units(units: int, depths: Sequence[int], counts: str) -> list[int]:
    """Layers of each stage, of ``depths`` layers, that are among the first ``units`` layers or stages (``counts``)."""
    if counts == 'stages':
        return [depth * (number < units) for number, depth in enumerate(depths)]
    starts = [sum(depths[:number]) for number in range(len(depths))]
    return [min(max(units - start, 0), depth) for start, depth in zip(starts, depths)]


def plan_norms(
    norm_cfg: Any,
    plain: dict,
    layers_by_norm: NormLayers,
    sizes: Sequence[dict],
    built: Sequence[int],
    covers_output: bool,
) -> tuple[Layers, dict]:
    """Config of the norms of each layer of each stage, and of the norm of the output.

    Args:
        norm_cfg: As of :class:`~mmlape.backbones.StagedTransformer`.
        plain: The LayerNorm of the family.
        layers_by_norm: Default options of a norm for all layers, by its type; None for a stage that keeps ``plain``.
        sizes: ``depth`` and ``num_heads`` of each stage.
        built: Number of layers of each stage that are built.
        covers_output: Whether a norm for all layers is that of the output too, else it is ``plain``.
    """
    listed = isinstance(norm_cfg, (list, tuple))
    if listed:
        single = len(sizes) == 1
        configs = [norm_cfg] if single else as_list('norm_cfg', norm_cfg, len(sizes), 'stages')
    else:
        config = plain if norm_cfg is None else norm_cfg
        entries = as_list(
            'norm_places', _default_layers(config, layers_by_norm), len(sizes), 'stages'
        )
        configs = [None if entry is None else {**entry, **config} for entry in entries]
    placed, reached = [], False
    for config, size, count in zip(configs, sizes, built):
        depth, own_output = size['depth'], covers_output
        if isinstance(config, (list, tuple)):
            own_output = len(sizes) == 1 and len(config) == depth + 1
            rows = [*as_list('norm_cfg', config, depth + own_output, 'layers'), plain][: depth + 1]
        else:
            config = plain if config is None else config
            norm_class(config)  # raises unless it is a dict
            config = dict(config)
            named = _layers_of_norm(config.pop('layers', None), depth)
            reached = reached or min(named) < count
            rows = [config if layer in named else plain for layer in range(depth + 1)]
        rows = [plain if row is None else row for row in rows]
        distinct = {id(row): row for row in rows}
        for key, row in distinct.items():
            heads = dict(num_heads=size['num_heads'])
            distinct[key] = {**heads, **row} if checked_norm(row).by_head else row
        placed.append([distinct[id(row)] for row in rows])
    layers = None if listed or norm_cfg is None else norm_cfg.get('layers')
    if layers is not None and not reached:
        raise ValueError(
            f'norm_cfg names the layers {layers}, of which none is built: out_indices end before'
        )
    return [norms[:-1] for norms in placed], placed[-1][-1] if own_output else plain


def checked_norm(norm_cfg: dict) -> type[TokenNorm]:
    """The class of a norm after a check of its options."""
    cls = norm_class(norm_cfg)
    # These two keys are not options of the class.
    check_options(cls, {k: v for k, v in norm_cfg.items() if k not in ('type', 'requires_grad')})
    return cls


def _default_layers(norm_cfg: dict, layers_by_norm: NormLayers) -> dict | Sequence[dict | None]:
    """Default options of a norm by its type."""
    cls = norm_class(norm_cfg)
    return next(
        (options for name, options in layers_by_norm.items() if norm_class(dict(type=name)) is cls),
        {},
    )


def _layers_of_norm(layers: Any, depth: int) -> Sequence[int]:
    """Layers of a stage that its key selects; ``depth`` is the output."""
    if layers is None:
        return range(depth + 1)
    if isinstance(layers, int) and layers < 0:
        layers = max(depth + layers, 1)
    return check_layers('norm_cfg layers', layers, depth)


def plan_stages(
    sizes: Sequence[dict],
    family: Options,
    options: Options,
    own: Parts,
    built: Sequence[int],
    prefix: PrefixSpec,
) -> list[StageSpec]:
    """The stages to build, of which ``built`` has the numbers of layers. ``options`` are the user's, merged with the
    architecture's; ``family`` has the default configs of parts, ``prefix`` is that of the last stage."""
    layers = {name: _plan_layers(name, sizes, family, options, own) for name in LAYER_PARTS}
    stems = as_list('stem', options.get('stem'), len(sizes), 'stages')
    stages = []
    for number, (size, count) in enumerate(zip(sizes, built)):
        if not count:
            continue
        stem = merged(family['stem'], size.get('stem'), stems[number], own.stem)
        if number:  # its input is the map of the stage before
            stem.pop('in_channels', None)
        where = number, len(sizes), size['depth'], count
        parts = {name: _of_stage(name, options, family, *where) for name in STAGE_PARTS}
        joining = parts.pop('joining') or dict(type='mmlape.DefaultJoining')
        stages.append(
            StageSpec(
                size['embed_dims'],
                size['num_heads'],
                count,
                stem=stem,
                joining=joining,
                layers={name: rows[number][:count] for name, rows in layers.items()},
                prefix=prefix if number == len(sizes) - 1 else PrefixSpec(),
                **parts,
            )
        )
    if options.get('joining') is not None and not any(stage.position for stage in stages):
        raise ValueError(
            f'joining={options["joining"]} has nothing to join: the network has no position of its own, '
            'give a position too'
        )
    return stages


def _of_stage(
    name: str, options: Options, family: Options, stage: int, stages: int, depth: int, built: int
) -> dict | None:
    """The config of a stage's part, the user's, else the family's, or None. Its key ``layers`` is cut to those
    ``built``."""
    value = family.get(name) if options.get(name) is None else options[name]
    config = value[stage] if isinstance(value, list | tuple) and len(value) == stages else value
    if config is None or config is False:
        return None
    if not isinstance(config, dict) or 'type' not in config:
        as_list(name, value, stages, 'stages')  # whether a list has the right length
        raise TypeError(f'{name} must be a dict with a type, or a list of dicts, got {config!r}')
    if config.get('layers') is None or built == depth or name == 'position':
        return config
    named = check_layers(f'{name} layers', config['layers'], depth)
    layers = [layer for layer in named if layer < built]
    if not layers:
        raise ValueError(
            f'{name} names the layers {config["layers"]}, of which none is built: out_indices end before'
        )
    return dict(config, layers=layers)


def _plan_layers(
    name: str, sizes: Sequence[dict], family: Options, options: Options, own: Parts
) -> Layers:
    """The config of a part of every layer of every stage."""
    rates = ('drop_rate', 'attn_drop_rate', 'drop_path_rate')
    drop, attn_drop, drop_path = (check_rate(rate, options.get(rate, 0.0)) for rate in rates)
    common = dict(attention=dict(attn_drop_rate=attn_drop, proj_drop_rate=drop))
    common.update(mlp=dict(drop_rate=drop), block={})
    last, user = max(sum(size['depth'] for size in sizes) - 1, 1), options.get(name)
    by_stage = [user] if len(sizes) == 1 else as_list(name, user, len(sizes), 'stages')
    planned: Layers = []
    for size, config in zip(sizes, by_stage):
        depth, start = size['depth'], sum(map(len, planned))
        users = as_list(name, config, depth, 'layers')
        by_name = {key: _of_layers(key, value, depth) for key, value in getattr(own, name).items()}
        by_size, before, row = as_list(name, size.get(name), depth, 'layers'), None, {}
        planned.append([])
        for layer in range(depth):
            rate = common[name]
            if name == 'block':
                rate = dict(drop_path_rate=drop_path * (start + layer) / last)
            own_options = {key: values[layer] for key, values in by_name.items()}
            configs = by_size[layer], rate, users[layer], own_options
            if configs != before:
                if not isinstance(users[layer], dict | None):
                    raise TypeError(f'{name} must be a dict, or a list of dicts, got {config!r}')
                # Rates of 0 are left out, so that a user's own part may lack these options.
                nonzero = {key: value for key, value in rate.items() if value}
                row = merged(family[name], by_size[layer], nonzero, users[layer], own_options)
                # The network's rates apply to parts of another type than the family's too.
                row, before = {**nonzero, **row}, configs
                # The ratio of hidden channels is a size of the architecture, whatever the type of the MLP.
                row = {**by_size[layer], **row} if name == 'mlp' else row
            planned[-1].append(row)
    return planned


def plan_prefix(
    family: Options, user: dict | None, own: Parts, norms: Sequence[dict], built: int
) -> PrefixSpec:
    """Prefix tokens of the last stage, whose layers have ``norms``, and of which the first ``built`` are built.

    Raises:
        ValueError: If options need a token, or a token a layer, that does not exist.
    """
    options = merged(PREFIX, family.get('prefix'), user, own.prefix)
    check_keys('prefix', options, PREFIX)
    names = ('cls_token', 'dist_token')
    sizes = {name: 1 for name in names if check_bool(f'with_{name}', options[name])}
    registers = check_positive_int('registers', options['registers'], minimum=0)
    if registers:
        sizes['reg_token'] = registers
    if sizes and not built:
        raise ValueError(
            f'prefix tokens ({", ".join(sizes)}) are those of the last stage, which is not built: '
            'out_indices must name it'
        )
    after, across = options['after'], options['across_layers']
    if after is None:
        seeing = [layer for layer, norm in enumerate(norms) if norm_class(norm).depends_on_position]
        after = (max(seeing, default=-1) + 1) % len(norms) if sizes else 0
    elif check_positive_int('prefix_after', after, minimum=0, maximum=len(norms) - 1) and not sizes:
        raise ValueError(
            f'prefix_after={after} needs a class or distillation token (with_cls_token, with_dist_token), '
            'and there is none'
        )
    if (user or {}).get('across_layers') is not None and 'cls_token' not in sizes:
        raise ValueError(
            f'across_layers={across} needs a class token (with_cls_token), and there is none'
        )
    present = sizes if after < built else {}
    return PrefixSpec(present, after if present else 0, across if 'cls_token' in present else None)
