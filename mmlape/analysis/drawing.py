"""The pictures: maps share one colour scale unless a function says otherwise, plots share their y axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from mmlape.layout import Grid

from .attention import AttentionDistances, ClassAttention
from .dtn import BEFORE, PositionMaps, Projection, RatioCourse, TokenVariation
from .figures import SCALE, SMOOTH, add_scale, new_maps, new_plots, show_map
from .flow import ROLES, PatchOrder, PositionFlow, pick_extremes, pick_flow_channels
from .gabor import KINDS, ChannelKinds, GaborFit
from .position import Correlations, EmbeddingTable, PositionScores, pick_channels

PER_ROW = 7
# Seen on black and on white, with few colours.
OUTLINE = [withStroke(linewidth=3, foreground='white')]
DIVERGING, SEQUENTIAL = 'PuOr_r', 'viridis'
LEAST_RANGE = 0.05  # a range of ratios is widened to this, so that noise is not drawn as a trend
Channels = Sequence[int] | None
FLOW_CELL, DTN_CELL = 1.25, 1.0  # inches of a map, where there are many


def _around_zero(values: np.ndarray) -> tuple[float, float]:
    """A scale around zero that holds all values."""
    limit = float(np.abs(values).max()) or 1.0
    return -limit, limit


def draw_correlations(correlations: Correlations) -> Figure:
    """Matrices, and under each the map of the chosen token, which is marked (LaPE, ICCV 2023, Figures 3 and 4). The
    colour scale goes from the least correlation in the picture to 1; grey is where there is none."""
    low = _least([correlations.matrices, correlations.maps])
    return _draw_matrices(correlations, SEQUENTIAL, (low, 1), 'cosine similarity')


def draw_scores(scores: PositionScores) -> Figure:
    """What position adds to the scores of each layer, queries by keys, and under each the chosen query's map."""
    return _draw_matrices(scores, DIVERGING, _around_zero(scores.matrices), 'added to the score')


def _draw_matrices(
    found: PositionScores, cmap: str, scale: tuple[float, float], label: str
) -> Figure:
    columns = min(len(found.names), PER_ROW)
    figure, axes = new_maps(2 * -(-len(found.names) // PER_ROW), columns, with_scale=True)
    for index, name in enumerate(found.names):
        band, column = divmod(index, columns)
        upper, lower = axes[2 * band : 2 * band + 2, column]
        image = show_map(upper, found.matrices[index], cmap, scale, name)
        show_map(lower, found.maps[index], cmap, scale)
        if not isinstance(found.token, int):
            lower.plot(*found.token[::-1], marker='x', color='black', path_effects=OUTLINE)
    axes[0, 0].set_ylabel('token x token', fontsize=8)
    prefix = 'prefix ' if isinstance(found.token, int) else ''
    axes[1, 0].set_ylabel(f'{prefix}token {found.token}', fontsize=8)
    add_scale(figure, image, label)
    return figure


def _least(correlations: Sequence[np.ndarray]) -> float:
    """The lower end of a scale that ends at 1."""
    finite = np.concatenate([part[np.isfinite(part)] for part in correlations])
    return float(min(finite.min(), 0.999)) if finite.size else -1.0


def draw_patch_order(states: Mapping[str, PatchOrder]) -> Figure:
    """An image, its patches in another order, and how far each patch's last token differs between the two, with the
    mean in the title: a map for each state of the network, e.g. ``'without position'``, of the same image and order."""
    first = next(iter(states.values()))
    columns = 2 + len(states)
    ratio = first.image.shape[1] / first.image.shape[0]
    figure, axes = new_maps(1, columns, [ratio] * columns, with_scale=True)
    brightness = (float(first.image.min()), float(first.image.max()))
    show_map(axes[0, 0], first.image, 'gray', brightness, 'image')
    show_map(axes[0, 1], first.shuffled, 'gray', brightness, 'in another order')
    highest = max(float(state.differences[-1].max()) for state in states.values())
    for place, (name, state) in zip(axes[0, 2:], states.items()):
        values = state.differences[-1]
        title = f'{name}: {values.mean():.2g}'
        image = show_map(place, values, SEQUENTIAL, (0, highest or 1.0), title)
    add_scale(figure, image, 'difference of tokens')
    return figure


def draw_embedding(table: EmbeddingTable, index: int = 0) -> Figure:
    """One table as a matrix of tokens by channels; a line divides prefix rows from the grid's."""
    rows = table.table(index)
    figure = Figure(figsize=(8, 5))
    axes = figure.add_axes((0.09, 0.11, 0.78, 0.8))
    scale = _around_zero(rows)
    image = axes.imshow(rows, cmap=DIVERGING, clim=scale, aspect='auto', interpolation=SMOOTH)
    if table.num_prefix:
        axes.axhline(table.num_prefix - 0.5, color='black', linewidth=0.8)
    height, width = table.grid
    axes.set(xlabel=table.columns, ylabel=table.rows)
    axes.set_title(f'{table.num_prefix} prefix + {height} x {width} {table.rows}s', fontsize=9)
    figure.colorbar(image, cax=figure.add_axes((0.89, 0.11, 0.02, 0.8)))
    return figure


def draw_channels(table: EmbeddingTable, channels: Channels = None, index: int = 0) -> Figure:
    """Maps of single channels of table ``index``, each with a colour scale of its own (Gabor position encoding, Figure
    4): by default 24 evenly spread ones."""
    maps = table.maps(index)
    chosen = pick_channels(len(maps), channels)
    columns = min(len(chosen), 8)
    figure, axes = new_maps(-(-len(chosen) // columns), columns)
    for place, channel in zip(axes.flat, chosen):
        values = maps[channel]
        show_map(place, values, DIVERGING, _around_zero(values), str(channel))
    return figure


def draw_grids(
    tables: Sequence[EmbeddingTable],
    maps: Sequence[np.ndarray],
    channels: Channels = None,
    index: int = 0,
) -> Figure:
    """The same embedding at several grids, one column per table: ``maps`` ``(H, W)``, the correlation of the centre
    with every cell, then single channels of table ``index``, by default 4 evenly spread ones. Each row has one colour
    scale, so that what changes with the grid is seen."""
    per_grid = [table.maps(index) for table in tables]
    chosen = pick_channels(len(per_grid[0]), channels, count=4)
    ratios = [table.grid[1] / table.grid[0] for table in tables]
    figure, axes = new_maps(len(chosen) + 1, len(tables), width_ratios=ratios)
    low = _least(maps)
    for column, table in enumerate(tables):
        show_map(axes[0, column], maps[column], SEQUENTIAL, (low, 1), '{} x {}'.format(*table.grid))
    for row, channel in enumerate(chosen, start=1):
        scale = _around_zero(np.concatenate([maps[channel].ravel() for maps in per_grid]))
        for place, values in zip(axes[row], per_grid):
            show_map(place, values[channel], DIVERGING, scale)
        axes[row, 0].set_ylabel(f'channel {channel}', fontsize=8)
    axes[0, 0].set_ylabel('correlation\nwith the centre', fontsize=8)
    return figure


def draw_gabor_fit(
    maps: np.ndarray, fit: GaborFit, kinds: ChannelKinds | None = None, per_kind: int = 4
) -> Figure:
    """Learned channels ``(C, H, W)`` above, what was fitted below, on one scale: the best-fitted ``per_kind`` channels
    of each kind; without ``kinds``, evenly spread ones."""
    if kinds is None:
        chosen = pick_channels(len(maps), count=4 * per_kind)
    else:
        order = np.argsort(-fit.r2, kind='stable')
        chosen = [c for kind in KINDS for c in order[kinds.kinds[order] == kind][:per_kind]]
    columns = min(len(chosen), 8)
    figure, axes = new_maps(2 * -(-len(chosen) // columns), columns)
    for place, channel in enumerate(chosen):
        band, column = divmod(place, columns)
        mean = maps[channel].mean()
        learned, fitted = maps[channel] - mean, fit.maps[channel] - mean
        scale = _around_zero(learned)
        kind = '' if kinds is None else f' {kinds.kinds[channel]}'
        show_map(axes[2 * band, column], learned, DIVERGING, scale, f'{channel}{kind}')
        title = f'R\N{SUPERSCRIPT TWO} {fit.r2[channel]:.2f}'
        show_map(axes[2 * band + 1, column], fitted, DIVERGING, scale, title)
    for row, (place, *_) in enumerate(axes):
        place.set_ylabel(('learned', 'fitted')[row % 2], fontsize=8)
    return figure


def draw_flow(flow: PositionFlow, count: int = 3, note: str = '') -> Figure:
    """``count`` channels of a layer that are most like position, and under them those that are least (Gabor position
    encoding, Figure 8).

    Columns: what the stage begins with, position and their sum, of the same channels; then queries, keys and values, of
    channels of their own. Titles are the number of the channel and its likeness to position. Every map has a scale of
    its own around zero: it is shapes that are compared. ``note`` is written beside them, e.g. whose weights these are.
    """
    columns = ('patches', 'position', 'summed', *ROLES)
    figure, axes = new_maps(2 * count, len(columns), cell=FLOW_CELL)
    for column, role in enumerate(columns):
        maps, likeness = getattr(flow, role), flow.likeness(role if role in ROLES else 'summed')
        channels = [channel for chosen in pick_extremes(likeness, count) for channel in chosen]
        for row, channel in enumerate(channels):
            words = f'{channel}: {likeness[channel]:.2f}' if column > 1 else f'{channel}'
            values = maps[channel]
            title = words if row else f'{role} {words}'
            show_map(axes[row, column], values, DIVERGING, _around_zero(values), title)
    axes[0, 0].set_ylabel('most like position', fontsize=8, loc='top')
    axes[count, 0].set_ylabel('least like position', fontsize=8, loc='top')
    return _with_note(figure, note)


def draw_position_alone(
    flow: PositionFlow, channels: Channels = None, count: int = 3, note: str = ''
) -> Figure:
    """Position and what a layer's queries, keys and values make of it alone, a row per channel (Figure 9); by default
    the ``count`` channels in which position is strongest beside the image. ValueError if a channel does not exist."""
    chosen = pick_flow_channels(flow, channels, count)
    shown = {'position': flow.position} | {r: getattr(flow, f'position_{r}') for r in ROLES}
    return _draw_rows(shown, chosen, note)


def draw_layers(flow: PositionFlow, channels: Channels = None, note: str = '') -> Figure:
    """The same channels before the first layer of a stage and after each (Figure 10), a row per channel; by default the
    one that is most like position where it joins, and the one that is least. ValueError if one does not exist."""
    if channels is None:
        chosen = [found[0] for found in pick_extremes(flow.likeness('summed'), 1)]
    else:
        chosen = pick_flow_channels(flow, channels, 0)
    names = ['before', *(f'layer {number}' for number in range(len(flow.layers) - 1))]
    return _draw_rows(dict(zip(names, flow.layers)), chosen, note)


def _draw_rows(shown: Mapping[str, np.ndarray], channels: Sequence[int], note: str) -> Figure:
    """Some of the maps ``(C, H, W)``, a column for each name and a row for each channel."""
    figure, axes = new_maps(len(channels), len(shown), cell=FLOW_CELL)
    for row, (places, channel) in enumerate(zip(axes, channels)):
        places[0].set_ylabel(f'channel {channel}', fontsize=8)
        for place, (name, maps) in zip(places, shown.items()):
            scale = _around_zero(maps[channel])
            show_map(place, maps[channel], DIVERGING, scale, '' if row else name)
    return _with_note(figure, note)


def _with_note(figure: Figure, note: str) -> Figure:
    if note:
        figure.text(0.996, 0.5, note, fontsize=6, rotation=270, ha='right', va='center')
    return figure


def draw_distances(stages: Sequence[AttentionDistances]) -> Figure:
    """Mean attention distance of every head by layer (DTN, ICLR 2022, Figure 2), a plot per stage. A dot is a head, in
    the order of the heads; a dashed line is the distance of equal weights."""
    figure, axes = new_plots(1, len(stages), share_y=False)
    for place, found in zip(axes[0], stages):
        heads, uniform = found.mean.shape[1], found.uniform.mean(axis=0)
        shift = np.linspace(-0.3, 0.3, heads) if heads > 1 else np.zeros(1)
        for layer, index in enumerate(found.layers):
            place.scatter(index + shift, found.mean[layer], s=12, color='tab:blue', linewidths=0)
            place.hlines(uniform[layer], index - 0.4, index + 0.4, 'black', 'dashed', linewidth=1)
        place.set_ylim(0, 1.1 * max(found.mean.max(), uniform.max(), 1e-6))
        place.set(xticks=found.layers, xlim=(found.layers[0] - 0.6, found.layers[-1] + 0.6))
        place.set_xlabel('layer', fontsize=7)
        grids = np.unique(found.grids, axis=0)
        size = '{} x {} tokens'.format(*grids[0]) if len(grids) == 1 else 'several grids'
        place.set_title(f'{found.stage}, {size}', fontsize=7, pad=3)
    axes[0, 0].set_ylabel('mean attention distance (patches)', fontsize=7)
    return figure


def draw_class_attention(images: Sequence[ClassAttention]) -> Figure:
    """The class token's attention: a row for each layer of each image, with the image, each head, and their mean.

    Colours are weights over that of equal attention, on one scale for all; what is more than the 99th percentile is as
    bright as that. ValueError if there is no image, or numbers of heads differ."""
    heads = {found.maps.shape[1] for found in images}
    if len(heads) != 1:
        raise ValueError(f'images must be at least one, of equal numbers of heads, got {heads}')
    rows = []
    for found in images:
        relative = found.maps * (found.maps[0, 0].size + found.prefix.shape[-1])
        rows += [(found.image, layer, maps) for layer, maps in zip(found.layers, relative)]
    top = max(np.percentile(np.concatenate([maps.ravel() for *_, maps in rows]), 99), 1e-6)
    titles = [*(f'head {head}' for head in range(heads.pop())), 'mean of heads']
    ratio = max(image.shape[1] / image.shape[0] for image, *_ in rows)
    columns = 1 + len(titles)
    figure, axes = new_maps(len(rows), columns, [ratio] * columns, with_scale=True)
    for places, (image, layer, maps) in zip(axes, rows):
        show_map(places[0], image, 'gray', (image.min(), image.max()), f'layer {layer}')
        for place, values, title in zip(places[1:], [*maps, maps.mean(0)], titles):
            shown = show_map(place, values, SEQUENTIAL, (0, top), title)
    add_scale(figure, shown, 'weight / equal weight')
    return figure


def draw_dtn_maps(states: Mapping[str, PositionMaps]) -> Figure:
    """One token's row of every map (DTN, ICLR 2022, Figures 6 and 7): a row per DTN and state, a column per head.
    The colour scale goes from 0 to the largest weight; a box marks the token's own cell. ``states``: Maps of one
    stage by what they are of, e.g. ``'before'`` and ``'after'`` training; with the same layers, grid and token."""
    several = len(states) > 1
    rows = [
        (f'{layer.name}\n{state}' if several else layer.name, layer)
        for layers in zip(*(maps.layers for maps in states.values()))
        for state, layer in zip(states, layers)
    ]
    heads = max(len(layer.maps) for _, layer in rows)
    figure, axes = new_maps(len(rows), heads, cell=DTN_CELL, with_scale=True)
    highest = max(layer.maps.max() for _, layer in rows)
    for places, (label, layer) in zip(axes, rows):
        places[0].set_ylabel(label, fontsize=7)
        corner = (layer.cell[1] - 0.5, layer.cell[0] - 0.5)
        for place, values in zip(places, layer.maps):
            image = show_map(place, values, SEQUENTIAL, (0, highest))
            place.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor='tab:red', linewidth=1.2))
    for head in range(heads if heads > 1 else 0):
        axes[0, head].set_title(f'head {head}', fontsize=8, pad=3)
    add_scale(figure, image, 'weight')
    return figure


def draw_ratios(course: RatioCourse) -> Figure:
    """DTN's ratios of mean (above) and variance (below) by iteration, a plot per layer and a line per head (Figure
    8)."""
    layers = course.layers
    bands = -(-len(layers) // PER_ROW)
    columns = -(-len(layers) // bands)
    figure, axes = new_plots(2 * bands, columns, legend=SCALE)
    low = min(np.nanmin(values) for values in course.values.values())
    high = max(np.nanmax(values) for values in course.values.values())
    margin = max((LEAST_RANGE - (high - low)) / 2, 0.05 * (high - low))
    colours = matplotlib.colormaps['tab10'](range(10))
    for index in range(bands * columns):
        band, column = divmod(index, columns)
        for row, kind in enumerate(('mean', 'var')):
            place = axes[2 * band + row, column]
            values = course.values.get((layers[index], kind)) if index < len(layers) else None
            if values is None:
                place.set_visible(False)
                continue
            for head, line in enumerate(values.T):
                colour = colours[head % len(colours)]
                place.plot(course.steps, line, color=colour, linewidth=1, label=f'head {head}')
            place.set_ylim(low - margin, high + margin)
            place.locator_params(axis='x', nbins=3)
            if row == 0 or (layers[index], 'mean') not in course.values:
                place.set_title(layers[index].removeprefix('backbone.'), fontsize=7, pad=3)
    for place in axes[-1]:
        place.set_xlabel('iteration', fontsize=7)
    for row, places in enumerate(axes):
        places[0].set_ylabel(f'ratio of the {("mean", "variance")[row % 2]}', fontsize=7)
    most = max(axes.flat, key=lambda place: len(place.lines))
    figure.legend(*most.get_legend_handles_labels(), loc='center right', fontsize=6, frameon=False)
    return figure


def draw_magnitudes(maps: Mapping[str, np.ndarray]) -> Figure:
    """Lengths of tokens per head, relative to their mean over the map (DTN, ICLR 2022, Figure 1): a row per norm, a
    column per head, from ``(G, H, W)`` by name, see :func:`~mmlape.analysis.magnitude_maps`.

    The colour scale leaves out the extreme 0.5 % at each end. Titles are standard deviations of what is shown."""
    least = np.finfo(float).tiny
    relative = {
        n: v / np.maximum(v.mean(axis=(1, 2), keepdims=True), least) for n, v in maps.items()
    }
    stacked = np.stack(list(relative.values()))
    figure, axes = new_maps(len(stacked), stacked.shape[1], with_scale=True)
    scale = np.quantile(stacked, (0.005, 0.995))
    for row, (places, (name, values)) in enumerate(zip(axes, relative.items())):
        places[0].set_ylabel(name, fontsize=8)
        for head, (place, head_map) in enumerate(zip(places, values)):
            prefix = f'head {head}:  ' if row == 0 else ''
            image = show_map(place, head_map, SEQUENTIAL, scale, f'{prefix}{head_map.std():.2f}')
    add_scale(figure, image, 'length / mean length')
    return figure


def draw_variation(found: Sequence[TokenVariation]) -> Figure:
    """Variation coefficients by layer, a plot per stage and a line per norm (Figure 3 (b)), on a logarithmic scale.
    Lines are medians over tokens, bands go from the lower to the upper quartile."""
    left, right, width = 0.6, 0.95, 2.2 * len(found) + 1.55
    figure = Figure(figsize=(width, 2.4))
    margins = dict(left=left / width, right=1 - right / width, bottom=0.17, top=0.9, wspace=0.08)
    axes = figure.subplots(1, len(found), squeeze=False, sharey=True, gridspec_kw=margins)
    names = dict.fromkeys(name for stage in found for name in stage.names)
    colours, lines = dict(zip(names, matplotlib.colormaps['tab10'](range(10)))), {}
    for place, stage in zip(axes[0], found):
        style = dict(linewidth=1.2, marker='o' if len(stage.layers) == 1 else None)
        for name, (low, median, high) in zip(stage.names, stage.quartiles.swapaxes(1, 2)):
            colour = colours[name]
            (lines[name],) = place.plot(stage.layers, median, color=colour, label=name, **style)
            place.fill_between(stage.layers, low, high, color=colour, alpha=0.2, linewidth=0)
        place.tick_params(labelsize=7)
        place.set_yscale('log')
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_major_formatter('{x:g}')
        place.yaxis.set_minor_locator(NullLocator())
        place.set_title(f'{stage.stage} {stage.norm}', fontsize=8, pad=3)
        place.set_xlabel('layer', fontsize=8)
        place.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if len(stage.layers) == 1:
            place.set_xticks(stage.layers)
    axes[0, 0].set_ylabel('variation coefficient', fontsize=8)
    figure.legend(lines.values(), lines, loc='center right', fontsize=7, frameon=False)
    return figure


def draw_projections(layers: Mapping[str, Mapping[str, Projection]], grid: Grid) -> Figure:
    """Tokens in the plane of their first two principal components (DTN, ICLR 2022, Figure 9): a row per layer, a column
    per version of the tokens on ``grid``.

    Colour says how far down in the image a token is; crosses are prefix tokens. The axes after norms share one range
    per layer, those before have their own. Titles are the share of the variance that the plane holds, and the root mean
    square distance from the mean in all channels."""
    versions = list(dict.fromkeys(name for found in layers.values() for name in found))
    figure, axes = new_maps(len(layers), len(versions))
    shade = np.repeat(np.arange(grid[0]), grid[1])
    size = float(np.clip(2000 / len(shade), 1, 14))
    for places, (layer, found) in zip(axes, layers.items()):
        after = [projection for name, projection in found.items() if name != BEFORE]
        for place, name in zip(places, versions):
            if name not in found:
                continue
            prefix, points = np.split(found[name].points, [found[name].num_prefix])
            sharing = [found[name]] if name == BEFORE else after
            limit = 1.05 * max(np.abs(each.points).max() for each in sharing) or 1.0
            place.set_frame_on(True)
            place.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect='equal')
            place.scatter(*points.T, c=shade, cmap=SEQUENTIAL, s=size, linewidths=0)
            place.scatter(*prefix.T, c='black', marker='x', s=30, linewidths=1)
            numbers = f'{found[name].explained.sum():.0%}, {found[name].spread:.3g}'
            place.set_title(f'{name}: {numbers}', fontsize=7, pad=3)
        places[0].set_ylabel(layer, fontsize=8)
    return figure
