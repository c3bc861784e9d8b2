"""Options of backbones: those of parts, for all layers or one by one, and where norms go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmlape.checks import check_layers, check_positive_int, did_you_mean
from mmlape.norm import check_norm_cfg, norm_class

LAYER_NORM = dict(type='mmlape.LN', eps=1e-6)
# Where a norm goes unless a norm_cfg says so, by its type: one for all stages, or one each.
NormPlaces = Mapping[str, 'dict | Sequence[dict | None]']


def merged(*configs: dict | None) -> dict:
    """Options of a part, the later config's before the earlier's; another ``type`` takes none of the earlier's."""
    result: dict = {}
    for config in configs:
        if config:
            other = config.get('type', result.get('type')) != result.get('type')
            result = {**({} if other else result), **config}
    return result


def given_over(default: Any, given: Any) -> Any:
    """A user's config of parts over an architecture's: options that it does not name stay, if it is of the same type.

    Args:
        default: The architecture's, or None.
        given: The user's: a dict, a list of dicts, None for the architecture's, or anything else in its place.
    """
    if given is None or not isinstance(default, dict):
        return default if given is None else given
    if isinstance(given, (list, tuple)):
        return [given_over(default, entry) for entry in given]
    return merged(default, given) if isinstance(given, dict) else given


def per_layer(name: str, value: Any, depths: Sequence[int]) -> list[list[dict]]:
    """The config of a part for every layer of every stage.

    Args:
        name: Of the option.
        value: A dict for all; a list with one for each stage (where there are several), of which each may be a list
            with one for each layer; None for nothing.
        depths: Layers of each stage.

    Raises:
        ValueError: If a list has another length.
        TypeError: If an entry is no dict.
    """
    stages = [value] if len(depths) == 1 else spread(name, value, len(depths), 'stages')
    layers = [spread(name, entry, depth, 'layers') for entry, depth in zip(stages, depths)]
    for entry in (entry for stage in layers for entry in stage):
        if entry is not None and not isinstance(entry, dict):
            raise TypeError(f'{name} must be a dict, or a list of dicts, got {entry!r}')
    return [[entry or {} for entry in stage] for stage in layers]


def spread(name: str, value: Any, count: int, kind: str) -> list:
    """One entry for each of ``count`` ``kind`` (stages, layers) from one for all, or a list of as many."""
    if not isinstance(value, (list, tuple)):
        return [value] * count
    if len(value) != count:
        raise ValueError(f'{name} must have one entry for each of {count} {kind}, got {value}')
    return list(value)


def sort_options(
    cls: type, options: Mapping[str, Any], common: Mapping[str, Any], short: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Options of a network, and of its parts by their short names.

    Args:
        cls: The network, for messages.
        options: What was given.
        common: The network's own options with their defaults.
        short: Short names of parts' options: ``{'patch_size': 'stem.patch_size'}``; several are separated by blanks.

    Returns:
        Values of ``common``, and ``{part: {option: value}}``.

    Raises:
        TypeError: If an option is unknown.
    """
    own = dict(common)
    parts: dict[str, dict[str, Any]] = {}
    for name, value in options.items():
        if name in common:
            own[name] = value
        elif name in short:
            for target in short[name].split():
                part, _, option = target.partition('.')
                parts.setdefault(part, {})[option] = value
        else:
            known = sorted([*common, *short])
            hint = did_you_mean(name, known) or f', beside its parts: {known}'
            raise TypeError(f'{cls.__name__} got an unexpected keyword argument {name!r}{hint}')
    return own, parts


def layers_of_units(units: int, depths: Sequence[int], counts: str) -> list[int]:
    """How many layers of each stage of ``depths`` layers are among the first so many ``counts``, layers or stages."""
    if counts == 'stages':
        return [depth * (number < units) for number, depth in enumerate(depths)]
    starts = [sum(depths[:number]) for number in range(len(depths))]
    return [min(max(units - start, 0), depth) for start, depth in zip(starts, depths)]


def linear_rates(last: float, depths: Sequence[int]) -> list[list[float]]:
    """A rate for each layer of each stage, from 0 at the very first to ``last`` at the very last."""
    count = max(sum(depths) - 1, 1)
    starts = [sum(depths[:stage]) for stage in range(len(depths))]
    return [
        [last * layer / count for layer in range(start, start + depth)]
        for start, depth in zip(starts, depths)
    ]


def place_norms(
    norm_cfg: Any,
    depths: Sequence[int],
    num_heads: Sequence[int],
    places: NormPlaces,
    plain: dict = LAYER_NORM,
    covers_output: bool = True,
) -> tuple[list[list[dict]], dict]:
    """Config of the norms of each layer of each stage, and of the norm of the output.

    Args:
        norm_cfg: None for ``plain``; one for all; or a list as for :func:`per_layer`, where that of an only stage may
            have one entry more, for the output. Its key ``layers`` (a number of first layers, negative for all but so
            many last ones, or a list) says where in a stage it goes; ``plain`` is elsewhere. Without that key it goes
            where ``places`` says, else everywhere.
        depths: Layers of each stage.
        num_heads: Heads of the attention of each stage: those of a norm by heads that does not name its own.
        places: Options of a norm by its type, which ``norm_cfg`` overrides, for one given to all; None for a stage that
            keeps ``plain``.
        plain: The LayerNorm of the family. Default ``mmlape.LN`` with eps 1e-6.
        covers_output: Whether one for all layers is that of the output too, else it is ``plain``. Default True.
    """
    if norm_cfg is None or isinstance(norm_cfg, dict):
        config = norm_cfg or plain
        entries = spread('places', _place_of(config, places), len(depths), 'stages')
        given = [entry if entry is None else {**entry, **config} for entry in entries]
    else:
        given = (
            [norm_cfg] if len(depths) == 1 else spread('norm_cfg', norm_cfg, len(depths), 'stages')
        )
    output = None
    if len(depths) == 1 and isinstance(given[0], (list, tuple)) and len(given[0]) == depths[0] + 1:
        *layers, last = given[0]
        given, output = [layers], _with_heads(last, num_heads[-1], plain)
    placed = [
        _norms_of_stage(config, depth, heads, plain)
        for config, depth, heads in zip(given, depths, num_heads)
    ]
    if output is None:
        output = placed[-1][-1] if covers_output else plain
    return [norms[:-1] for norms in placed], output


def check_norm_is_built(
    norm_cfg: Any, norms: Sequence[list[dict]], built: Sequence[int], plain: dict = LAYER_NORM
) -> None:
    """Raise ValueError if the key ``layers`` of one config for all names none of the layers that are built.

    Args:
        norm_cfg: As for :func:`place_norms`.
        norms: What that made of it, for each layer of each stage.
        built: Number of layers of each stage that are built.
        plain: As for :func:`place_norms`.
    """
    layers = norm_cfg.get('layers') if isinstance(norm_cfg, dict) else None
    first = (norm for stage, count in zip(norms, built) for norm in stage[:count])
    if layers is not None and all(norm is plain for norm in first):
        raise ValueError(
            f'norm_cfg names the layers {layers}, of which none is built: out_indices end before'
        )


def _norms_of_stage(config: Any, depth: int, num_heads: int, plain: dict) -> list[dict]:
    """Those of each layer, and of an output after them."""
    if isinstance(config, (list, tuple)):
        entries = spread('norm_cfg', config, depth, 'layers')
        return [*(_with_heads(entry, num_heads, plain) for entry in entries), plain]
    options = _with_heads(config, num_heads, plain)
    layers = options.pop('layers', None)
    if layers is None:
        return [options] * (depth + 1)
    if isinstance(layers, int) and layers < 0:
        layers = max(depth + layers, 1)
    named = check_layers('norm_cfg layers', layers, depth)
    return [options if layer in named else plain for layer in range(depth + 1)]


def _place_of(norm_cfg: dict, places: NormPlaces) -> dict | Sequence[dict | None]:
    cls = norm_class(norm_cfg)
    return next((place for name, place in places.items() if norm_class(dict(type=name)) is cls), {})


def _with_heads(norm_cfg: Any, num_heads: int, plain: dict) -> dict:
    options = check_norm_cfg(plain if norm_cfg is None else norm_cfg)
    if norm_class(options).by_head:
        options.setdefault('num_heads', num_heads)
    return options


def resolve_prefix_after(after: int | None, norms: Sequence[dict], with_prefix: bool) -> int:
    """Number of first layers of a stage without prefix tokens.

    Args:
        after: As asked for; None for the layers up to the last one whose norm sees places, 0 where no layer follows.
        norms: Config of the norms of each layer.
        with_prefix: Whether there are prefix tokens.

    Raises:
        ValueError: If there is nothing to join, or no layer for it.
    """
    if after is None:
        seeing = [layer for layer, norm in enumerate(norms) if norm_class(norm).sees_places]
        return (max(seeing, default=-1) + 1) % len(norms) if with_prefix else 0
    check_positive_int('prefix_after', after, minimum=0, maximum=len(norms) - 1)
    if after and not with_prefix:
        raise ValueError(
            f'prefix_after={after} needs a class or distillation token '
            '(with_cls_token, with_dist_token), and there is none'
        )
    return after


def filtered_layers(name: str, config: dict | None, depth: int, built: int) -> dict | None:
    """A config whose key ``layers`` names layers of ``depth``, with those of them that are built.

    Raises:
        ValueError: If a layer does not exist, or none of them is built.
    """
    if config is None or config.get('layers') is None or built == depth:
        return config
    layers = [
        layer for layer in check_layers(f'{name} layers', config['layers'], depth) if layer < built
    ]
    if not layers:
        raise ValueError(
            f'{name} names the layers {config["layers"]}, of which none is built: out_indices end before'
        )
    return dict(config, layers=layers)
