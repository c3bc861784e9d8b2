"""Pictures of what DTN learned: its maps, its ratios, and what it does to tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from mmlape.analysis.panels import (
    PER_ROW,
    SEQUENTIAL,
    add_scale,
    new_figure,
    new_panels,
    new_plots,
    show_map,
)

from .maps import LayerMaps, PositionMaps
from .pca import Projection
from .ratios import RatioCourse
from .tokens import BEFORE
from .variation import TokenVariation

# Inches, of maps that come in many rows.
SMALL = 1.0
# What a range of ratios is widened to, so that noise is not drawn as a trend.
LEAST_RANGE = 0.05


def draw_dtn_maps(states: Mapping[str, PositionMaps]) -> Figure:
    """One token's row of every map (DTN, ICLR 2022, Figures 6 and 7): a row per DTN, a column per head.

    All share one colour scale, from 0 to the largest weight. A box marks the token's own cell.

    Args:
        states: Maps of one stage by what they are of, e.g. ``'before'`` and ``'after'`` training; with the same layers,
            grid and token.
    """
    first = next(iter(states.values()))
    rows = [
        (f'{layer.name}\n{state}' if len(states) > 1 else layer.name, layer)
        for index in range(len(first.layers))
        for state, layer in ((state, maps.layers[index]) for state, maps in states.items())
    ]
    heads = max(len(layer.maps) for _, layer in rows)
    figure, axes = new_panels(len(rows), heads, cell=SMALL, with_scale=True)
    highest = max(layer.maps.max() for _, layer in rows)
    for places, (label, layer) in zip(axes, rows):
        places[0].set_ylabel(label, fontsize=7)
        for place, values in zip(places, layer.maps):
            image = show_map(place, values, SEQUENTIAL, (0, highest))
            _mark_cell(place, layer)
    for head in range(heads if heads > 1 else 0):
        axes[0, head].set_title(f'head {head}', fontsize=8, pad=3)
    add_scale(figure, image, 'weight')
    return figure


def draw_ratios(course: RatioCourse) -> Figure:
    """Ratios of mean (above) and variance (below) by iteration, a panel per layer and a line per head (Figure 8)."""
    layers = course.layers
    bands = -(-len(layers) // PER_ROW)
    columns = -(-len(layers) // bands)
    figure, axes = new_plots(2 * bands, columns, right=0.92)
    low, high = _range(list(course.values.values()))
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
            place.set_ylim(low, high)
            place.locator_params(axis='x', nbins=3)
            if row == 0 or (layers[index], 'mean') not in course.values:
                place.set_title(layers[index].removeprefix('backbone.'), fontsize=7, pad=3)
    for place in axes[-1]:
        place.set_xlabel('iteration', fontsize=7)
    for row, places in enumerate(axes):
        places[0].set_ylabel(f'ratio of the {("mean", "variance")[row % 2]}', fontsize=7)
    most = max((place for place in axes.flat), key=lambda place: len(place.lines))
    figure.legend(*most.get_legend_handles_labels(), loc='center right', fontsize=6, frameon=False)
    return figure


def draw_magnitudes(maps: Mapping[str, np.ndarray]) -> Figure:
    """Lengths of tokens per head, relative to their mean over the map (Figure 1): a row per norm, a column per head.

    All share one colour scale, which leaves out the extreme 0.5 % at each end. The number over a panel is the standard
    deviation of what it shows.

    Args:
        maps: ``(G, H, W)`` by name, see :func:`~mmlape.analysis.magnitude_maps`.
    """
    relative = {
        name: values / np.maximum(values.mean(axis=(1, 2), keepdims=True), np.finfo(float).tiny)
        for name, values in maps.items()
    }
    heads = len(next(iter(relative.values())))
    figure, axes = new_panels(len(relative), heads, with_scale=True)
    scale = np.quantile(np.stack(list(relative.values())), (0.005, 0.995))
    for row, (places, (name, values)) in enumerate(zip(axes, relative.items())):
        places[0].set_ylabel(name, fontsize=8)
        for head, (place, head_map) in enumerate(zip(places, values)):
            prefix = f'head {head}:  ' if row == 0 else ''
            image = show_map(place, head_map, SEQUENTIAL, scale, f'{prefix}{head_map.std():.2f}')
    add_scale(figure, image, 'length / mean length')
    return figure


def draw_variation(found: Sequence[TokenVariation]) -> Figure:
    """Variation coefficients by layer, a panel per stage and a line per norm (Figure 3 (b)), on a logarithmic scale.

    Lines are medians over tokens, bands go from the lower to the upper quartile.

    Args:
        found: From :func:`~mmlape.analysis.token_variation`.
    """
    left, right, width, height = 0.6, 0.95, 2.2 * len(found) + 1.55, 2.4
    figure = new_figure(width, height)
    margins = dict(left=left / width, right=1 - right / width, bottom=0.17, top=0.9, wspace=0.08)
    axes = figure.subplots(1, len(found), squeeze=False, sharey=True, gridspec_kw=margins)
    colours = matplotlib.colormaps['tab10'](range(10))
    for place, stage in zip(axes[0], found):
        marker = 'o' if len(stage.layers) == 1 else None
        for name, quartiles, colour in zip(stage.names, stage.quartiles, colours):
            low, median, high = quartiles.T
            place.plot(stage.layers, median, color=colour, linewidth=1.2, label=name, marker=marker)
            place.fill_between(stage.layers, low, high, color=colour, alpha=0.2, linewidth=0)
        place.tick_params(labelsize=7)
        place.set_yscale('log')
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_major_formatter('{x:g}')
        place.yaxis.set_minor_locator(NullLocator())
        place.set_title(f'{stage.stage} {stage.norm}', fontsize=8, pad=3)
        place.set_xlabel('layer', fontsize=8)
        place.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes[0, 0].set_ylabel('variation coefficient', fontsize=8)
    handles, labels = axes[0, -1].get_legend_handles_labels()
    figure.legend(handles, labels, loc='center right', fontsize=7, frameon=False)
    return figure


def draw_projections(
    layers: Mapping[str, Mapping[str, Projection]], grid: tuple[int, int]
) -> Figure:
    """Tokens in the plane of their first two principal components (Figure 9): a row per layer, a column per norm.

    Colour says how far down in the image a token is; crosses are prefix tokens. The panels after norms share one range
    per layer, those before have their own. Above stand the share of the variance that the plane holds, and the root
    mean square distance from the mean in all channels.

    Args:
        layers: Projections by version, by layer.
        grid: ``(H, W)``.
    """
    versions = list(dict.fromkeys(name for found in layers.values() for name in found))
    figure, axes = new_panels(len(layers), len(versions))
    shade = np.repeat(np.arange(grid[0]), grid[1])
    size = float(np.clip(2000 / len(shade), 1, 14))
    for places, (layer, found) in zip(axes, layers.items()):
        after = [projection for name, projection in found.items() if name != BEFORE]
        for place, name in zip(places, versions):
            if name not in found:
                continue
            prefix, points = np.split(found[name].points, [found[name].num_prefix])
            limit = _limit([found[name]] if name == BEFORE else after)
            place.set_frame_on(True)
            place.set(xlim=(-limit, limit), ylim=(-limit, limit), aspect='equal')
            place.scatter(*points.T, c=shade, cmap=SEQUENTIAL, s=size, linewidths=0)
            place.scatter(*prefix.T, c='black', marker='x', s=30, linewidths=1)
            numbers = f'{found[name].explained.sum():.0%}, {found[name].spread:.3g}'
            place.set_title(f'{name}: {numbers}', fontsize=7, pad=3)
        places[0].set_ylabel(layer, fontsize=8)
    return figure


def _mark_cell(axes: Axes, layer: LayerMaps) -> None:
    row, column = layer.cell
    corner = (column - 0.5, row - 0.5)
    axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor='tab:red', linewidth=1.2))


def _range(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Limits of an axis that hold all values, not narrower than ``LEAST_RANGE``."""
    low = min(np.nanmin(part) for part in values)
    high = max(np.nanmax(part) for part in values)
    margin = max((LEAST_RANGE - (high - low)) / 2, 0.05 * (high - low))
    return low - margin, high + margin


def _limit(projections: Sequence[Projection]) -> float:
    return 1.05 * max(np.abs(projection.points).max() for projection in projections) or 1.0
