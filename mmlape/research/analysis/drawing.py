"""The pictures: maps share one colour scale unless a function says otherwise, plots share their y axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from mmlape.apps.report import line_style
from mmlape.layout import Grid

from .attention import AttentionDistances, ClassAttention
from .dtn import BEFORE, PositionMaps, Projection, RatioCourse, TokenVariation
from .figures import (
    DIVERGING,
    SCALE,
    SEQUENTIAL,
    SMOOTH,
    TEXT,
    Panel,
    add_key,
    add_note,
    around_zero,
    draw_maps,
    new_plots,
)
from .flow import ROLES, PatchOrder, PositionFlow, pick_extremes, pick_flow_channels
from .gabor import KINDS, ChannelKinds, GaborFit
from .position import Correlations, EmbeddingTable, PositionScores, pick_channels

PER_ROW = 7
# Seen on black and on white, with few colours.
OUTLINE = [withStroke(linewidth=3, foreground='white')]
Channels = Sequence[int] | None
OWN_SCALE = 'each map has a scale of its own: purple below zero, white zero, orange above'
LABELS = ('most like position', 'least like position')
FLOW_CELL, MANY_CELL, DTN_CELL = 1.25, 1.1, 1.0  # inches of a map, where there are many


def _chunks(items: Sequence, size: int) -> list[Sequence]:
    return [items[start : start + size] for start in range(0, len(items), size)]


def draw_correlations(correlations: Correlations) -> Figure:
    """Matrices, and under each the map of the chosen token, which is marked (LaPE, ICCV 2023, Figures 3 and 4). The
    colour scale goes from the least correlation in the picture to 1; grey is where there is none."""
    low = _least([correlations.matrices, correlations.maps])
    return _draw_matrices(correlations, SEQUENTIAL, (low, 1), 'cosine similarity')


def draw_scores(scores: PositionScores) -> Figure:
    """Draw what position adds to the scores of each layer, queries by keys, and under each the chosen query's map."""
    return _draw_matrices(scores, DIVERGING, around_zero(scores.matrices), 'added to the score')


def _draw_matrices(
    found: PositionScores, cmap: str, scale: tuple[float, float], label: str
) -> Figure:
    rows = []
    prefix = 'prefix ' if isinstance(found.token, int) else ''
    for band in _chunks(range(len(found.names)), PER_ROW):
        matrices = [Panel(found.matrices[n], found.names[n], cmap, scale) for n in band]
        maps = [Panel(found.maps[n], '', cmap, scale) for n in band]
        rows += [('token x token', matrices), (f'{prefix}token {found.token}', maps)]
    figure, axes = draw_maps(rows, label)
    if not isinstance(found.token, int):
        style = dict(marker='x', color='black', linestyle='', path_effects=OUTLINE)
        for place in axes[1::2].flat[: len(found.names)]:
            (cross,) = place.plot(*found.token[::-1], **style)
        add_key(figure, **{'the token': cross})
    return figure


def _least(correlations: Sequence[np.ndarray]) -> float:
    """The lower end of a scale that ends at 1."""
    finite = np.concatenate([part[np.isfinite(part)] for part in correlations])
    return float(min(finite.min(), 0.999)) if finite.size else -1.0


def draw_patch_order(states: Mapping[str, PatchOrder]) -> Figure:
    """An image, its patches in another order, and how far each patch's last token differs between the two, with the
    mean in the title: a map for each state of the network, e.g. ``'without position'``, of the same image and order."""
    first = next(iter(states.values()))
    panels = [_photo(first.image, 'image'), _photo(first.shuffled, 'in another order')]
    last = {name: state.differences[-1] for name, state in states.items()}
    scale = 0.0, max(float(values.max()) for values in last.values()) or 1.0
    for name, values in last.items():
        panels.append(Panel(values, f'{name}: {values.mean():.2g}', SEQUENTIAL, scale))
    ratios = [first.image.shape[1] / first.image.shape[0]] * len(panels)
    return draw_maps([('', panels)], 'difference of tokens', ratios=ratios)[0]


def _photo(image: np.ndarray, title: str) -> Panel:
    return Panel(image, title, 'gray', (float(image.min()), float(image.max())))


def draw_embedding(table: EmbeddingTable, index: int = 0) -> Figure:
    """One table as a matrix of tokens by channels; a line divides prefix rows from the grid's."""
    rows = table.table(index)
    figure = Figure(figsize=(8, 5), layout='constrained')
    axes, scale = figure.subplots(), around_zero(rows)
    image = axes.imshow(rows, cmap=DIVERGING, clim=scale, aspect='auto', interpolation=SMOOTH)
    if table.num_prefix:
        axes.axhline(table.num_prefix - 0.5, color='black', linewidth=0.8)
    height, width = table.grid
    axes.set(xlabel=table.columns, ylabel=table.rows)
    axes.set_title(f'{table.num_prefix} prefix + {height} x {width} {table.rows}s', fontsize=TEXT)
    figure.colorbar(image, ax=axes).set_label('value', fontsize=TEXT)
    return figure


def draw_channels(table: EmbeddingTable, channels: Channels = None, index: int = 0) -> Figure:
    """Maps of single channels of table ``index``, each with a colour scale of its own (Gabor position encoding, Figure
    4): by default 24 evenly spread ones."""
    maps = table.maps(index)
    panels = [Panel(maps[channel], str(channel)) for channel in pick_channels(len(maps), channels)]
    figure = draw_maps([('', row) for row in _chunks(panels, 8)], cell=MANY_CELL)[0]
    add_note(figure, f'above a map: its channel; {OWN_SCALE}')
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
    grids = [table.grid for table in tables]
    per_grid = [table.maps(index) for table in tables]
    shown = [
        Panel(each, '{} x {}'.format(*grid), SEQUENTIAL, (_least(maps), 1.0))
        for each, grid in zip(maps, grids)
    ]
    rows = [('correlation\nwith the centre', shown)]
    for channel in pick_channels(len(per_grid[0]), channels, count=4):
        scale = around_zero(np.concatenate([maps[channel].ravel() for maps in per_grid]))
        shown = [Panel(maps[channel], scale=scale) for maps in per_grid]
        rows.append((f'channel {channel}', shown))
    figure = draw_maps(rows, ratios=[width / height for height, width in grids])[0]
    low = _least(maps)
    add_note(
        figure,
        f'one scale per row: correlation from {low:.2f} (blue) to 1 (yellow);\n'
        'channels purple below zero, white zero, orange above',
    )
    return figure


def draw_gabor_fit(maps: np.ndarray, fit: GaborFit, kinds: ChannelKinds | None = None) -> Figure:
    """Learned channels ``(C, H, W)`` above, what was fitted below, on one scale: the four best-fitted channels of each
    kind; without ``kinds``, 16 evenly spread ones."""
    if kinds is None:
        chosen = pick_channels(len(maps), count=16)
    else:
        order = np.argsort(-fit.r2, kind='stable')
        chosen = [c for kind in KINDS for c in order[kinds.kinds[order] == kind][:4]]
    pairs = []
    for channel in chosen:
        mean = maps[channel].mean()
        learned, fitted = maps[channel] - mean, fit.maps[channel] - mean
        title = f'{channel}' if kinds is None else f'{channel} {kinds.kinds[channel]}'
        r2 = f'R\N{SUPERSCRIPT TWO} {fit.r2[channel]:.2f}'
        pairs.append((Panel(learned, title), Panel(fitted, r2, scale=around_zero(learned))))
    bands = [zip(*band) for band in _chunks(pairs, 8)]
    rows = [row for band in bands for row in zip(('learned', 'fitted'), band)]
    figure = draw_maps(rows, cell=MANY_CELL)[0]
    add_note(
        figure,
        'above a learned map: its channel and kind;\n'
        'each pair has one scale: purple below its mean, white there, orange above',
    )
    return figure


def draw_flow(flow: PositionFlow, count: int = 3, note: str = '') -> Figure:
    """``count`` channels of a layer that are most like position, and under them those that are least (Gabor position
    encoding, Figure 8).

    Columns: what the stage begins with, position and their sum, of the same channels; then queries, keys and values, of
    channels of their own. Titles are the number of the channel and its likeness to position. Every map has a scale of
    its own around zero: it is shapes that are compared. ``note`` is written above them, e.g. whose weights these are.
    """
    columns = []
    for role in ('patches', 'position', 'summed', *ROLES):
        maps, likeness = getattr(flow, role), flow.likeness(role if role in ROLES else 'summed')
        most, least = pick_extremes(likeness, count)
        same = role in ('patches', 'position')
        panels = [
            Panel(maps[c], f'{c}' if same else f'{c}: {likeness[c]:.2f}') for c in most + least
        ]
        columns.append([panels[0]._replace(title=f'{role} {panels[0].title}'), *panels[1:]])
    labels = [label if row == 0 else '' for label in LABELS for row in range(count)]
    figure = draw_maps(list(zip(labels, zip(*columns))), cell=FLOW_CELL)[0]
    add_note(figure, f'above a map: its channel, and its likeness to position;\n{OWN_SCALE}')
    return _with_note(figure, note)


def draw_sum(flow: PositionFlow, note: str = '') -> Figure:
    """Matrices, cells by channels, of what a stage begins with, of position, and of their sum, on one colour scale."""
    roles = ('patches', 'position', 'summed')
    matrices = [getattr(flow, role).reshape(len(flow.patches), -1).T for role in roles]
    scale = around_zero(np.stack(matrices))
    panels = [Panel(each, role, DIVERGING, scale) for role, each in zip(roles, matrices)]
    rows = [('cell x channel', panels)]
    return _with_note(draw_maps(rows, 'value', ratios=[1.0] * 3, cell=2.5)[0], note)


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
    rows = [
        (
            f'channel {channel}',
            [Panel(maps[channel], '' if row else n) for n, maps in shown.items()],
        )
        for row, channel in enumerate(channels)
    ]
    figure = draw_maps(rows, cell=FLOW_CELL)[0]
    add_note(figure, OWN_SCALE)
    return _with_note(figure, note)


def _with_note(figure: Figure, note: str) -> Figure:
    if note:
        figure.suptitle(note, fontsize=TEXT, x=0.99, ha='right')
    return figure


def draw_distances(stages: Sequence[AttentionDistances]) -> Figure:
    """Mean attention distance of every head by layer (DTN, ICLR 2022, Figure 2), a plot per stage. A dot is a head, in
    the order of the heads; a dashed line is the distance of equal weights."""
    figure, axes = new_plots(1, len(stages), share_y=False)
    for place, found in zip(axes[0], stages):
        count, uniform = found.mean.shape[1], found.uniform.mean(axis=0)
        shift = np.linspace(-0.3, 0.3, count) if count > 1 else np.zeros(1)
        for layer, index in enumerate(found.layers):
            heads = place.scatter(
                index + shift, found.mean[layer], s=12, color='tab:blue', linewidths=0
            )
            ends = index - 0.4, index + 0.4
            equal = place.hlines(uniform[layer], *ends, 'black', 'dashed', linewidth=1)
        place.set_ylim(0, 1.1 * max(found.mean.max(), uniform.max(), 1e-6))
        place.set_xticks(found.layers)
        place.set_xlabel('layer', fontsize=TEXT)
        grids = np.unique(found.grids, axis=0)
        size = '{} x {} tokens'.format(*grids[0]) if len(grids) == 1 else 'several grids'
        place.set_title(f'{found.stage}, {size}', fontsize=TEXT, pad=3)
    axes[0, 0].set_ylabel('mean attention distance (patches)', fontsize=TEXT)
    add_key(figure, heads=heads, **{'equal attention to all tokens': equal})
    return figure


def draw_class_attention(images: Sequence[ClassAttention]) -> Figure:
    """The class token's attention: a row for each layer of each image, with the image, each head, and their mean.

    Colours are weights over that of equal attention, on one scale for all; what is more than the 99th percentile is as
    bright as that. ValueError if there is no image, or numbers of heads differ."""
    heads = {found.maps.shape[1] for found in images}
    if len(heads) != 1:
        raise ValueError(f'images must be at least one, of equal numbers of heads, got {heads}')
    relative = [each.maps * (each.maps[0, 0].size + each.prefix.shape[-1]) for each in images]
    top = max(np.percentile(np.concatenate([maps.ravel() for maps in relative]), 99), 1e-6)
    titles = [*(f'head {head}' for head in range(heads.pop())), 'mean of heads']
    rows = []
    for found, of_image in zip(images, relative):
        for layer, maps in zip(found.layers, of_image):
            shown = zip([*maps, maps.mean(0)], titles)
            panels = [Panel(values, title, SEQUENTIAL, (0, top)) for values, title in shown]
            rows.append(('', [_photo(found.image, f'layer {layer}'), *panels]))
    ratio = max(found.image.shape[1] / found.image.shape[0] for found in images)
    ratios = [ratio] * (1 + len(titles))
    return draw_maps(rows, 'weight / equal weight', ratios=ratios)[0]


def draw_dtn_maps(states: Mapping[str, PositionMaps]) -> Figure:
    """One token's row of every map (DTN, ICLR 2022, Figures 6 and 7): a row per DTN and state, a column per head.
    The colour scale goes from 0 to the largest weight; a box marks the token's own cell. ``states``: Maps of one
    stage by what they are of, e.g. ``'before'`` and ``'after'`` training; with the same layers, grid and token."""
    layers = [layer for same in zip(*(maps.layers for maps in states.values())) for layer in same]
    scale, rows = (0.0, max(layer.maps.max() for layer in layers)), []
    for number, layer in enumerate(layers):
        heads = [f'head {head}' if number == 0 else '' for head in range(len(layer.maps))]
        panels = [Panel(values, head, SEQUENTIAL, scale) for values, head in zip(layer.maps, heads)]
        state = f'\n{list(states)[number % len(states)]}' if len(states) > 1 else ''
        rows.append((f'{layer.name}{state}', panels))
    figure, axes = draw_maps(rows, 'weight', DTN_CELL)
    for places, layer in zip(axes, layers):
        corner = (layer.cell[1] - 0.5, layer.cell[0] - 0.5)
        for place, _ in zip(places, layer.maps):
            box = Rectangle(corner, 1, 1, fill=False, edgecolor='tab:red', linewidth=1.2)
            place.add_patch(box)
    add_key(figure, **{'the token itself': box})
    return figure


def draw_ratios(course: RatioCourse) -> Figure:
    """DTN's ratios of mean (above) and variance (below) by iteration, a plot per layer and a line per head (Figure
    8)."""
    bands = -(-len(course.layers) // PER_ROW)
    columns = -(-len(course.layers) // bands)
    figure, axes = new_plots(2 * bands, columns, legend=SCALE)
    for place in axes.flat:
        place.set_visible(False)
    for (layer, kind), values in course.values.items():
        band, column = divmod(course.layers.index(layer), columns)
        place = axes[2 * band + (kind == 'var'), column]
        for head, ratios in enumerate(values.T):
            place.plot(course.steps, ratios, **line_style(head, label=f'head {head}'))
        place.set_visible(True)
        of = dict(mean='mean', var='variance')[kind]
        place.set_title(f'{layer.removeprefix("backbone.")}\n{of}', fontsize=TEXT, pad=3)
        place.set_ylabel('ratio' if column == 0 else '', fontsize=TEXT)
        place.set_xlabel('iteration', fontsize=TEXT)
        place.locator_params(axis='x', nbins=3)
    most = max(axes.flat, key=lambda place: len(place.lines))
    shown = most.get_legend_handles_labels()
    figure.legend(*shown, loc='outside right center', fontsize=TEXT, frameon=False)
    return figure


def draw_magnitudes(maps: Mapping[str, np.ndarray]) -> Figure:
    """Lengths of tokens per head, relative to their mean over the map (DTN, ICLR 2022, Figure 1): a row per norm, a
    column per head, from ``(G, H, W)`` by name, see :func:`~mmlape.research.analysis.magnitude_maps`.

    The colour scale leaves out the extreme 0.5 % at each end. Titles are standard deviations of what is shown."""
    least = np.finfo(float).tiny
    relative = {
        n: v / np.maximum(v.mean(axis=(1, 2), keepdims=True), least) for n, v in maps.items()
    }
    low, high = np.quantile(np.stack(list(relative.values())), (0.005, 0.995))
    rows = []
    for number, (name, heads) in enumerate(relative.items()):
        titles = [f'head {head}: ' if number == 0 else '' for head in range(len(heads))]
        shown = [
            Panel(each, f'{title}{each.std():.2f}', SEQUENTIAL, (low, high))
            for each, title in zip(heads, titles)
        ]
        rows.append((name, shown))
    figure = draw_maps(rows, 'length / mean length')[0]
    add_note(figure, 'above a map: standard deviation of what is shown')
    return figure


def draw_variation(found: Sequence[TokenVariation]) -> Figure:
    """Variation coefficients by layer, a plot per stage and a line per norm (Figure 3 (b)), on a logarithmic scale.
    Lines are medians over tokens, bands go from the lower to the upper quartile."""
    figure, axes = new_plots(1, len(found), legend=SCALE)
    names = list(dict.fromkeys(name for stage in found for name in stage.names))
    lines = {}
    for place, stage in zip(axes[0], found):
        marker = 'o' if len(stage.layers) == 1 else None
        for name, (low, median, high) in zip(stage.names, stage.quartiles.swapaxes(1, 2)):
            style = line_style(names.index(name), label=name, marker=marker)
            (lines[name],) = place.plot(stage.layers, median, **style)
            shade = dict(color=style['color'], alpha=0.2, linewidth=0)
            place.fill_between(stage.layers, low, high, **shade)
        place.set_yscale('log')
        place.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        place.yaxis.set_major_formatter('{x:g}')
        place.yaxis.set_minor_locator(NullLocator())
        place.set_title(f'{stage.stage} {stage.norm}', fontsize=TEXT, pad=3)
        place.set_xlabel('layer', fontsize=TEXT)
        place.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        if len(stage.layers) == 1:
            place.set_xticks(stage.layers)
    axes[0, 0].set_ylabel('variation coefficient', fontsize=TEXT)
    figure.legend(lines.values(), lines, loc='outside right center', fontsize=TEXT, frameon=False)
    add_note(figure, 'lines: medians over tokens; bands: from the lower to the upper quartile')
    return figure


def draw_projections(layers: Mapping[str, Mapping[str, Projection]], grid: Grid) -> Figure:
    """Tokens in the plane of their first two principal components (DTN, ICLR 2022, Figure 9): a row per layer, a column
    per version of the tokens on ``grid``.

    Colour says how far down in the image a token is; crosses are prefix tokens. The axes after norms share one range
    per layer, those before have their own. Titles are the share of the variance that the plane holds, and the root mean
    square distance from the mean in all channels."""
    versions = list(dict.fromkeys(name for found in layers.values() for name in found))
    figure, axes = new_plots(len(layers), len(versions), share_y=False)
    shade = np.repeat(np.arange(grid[0]), grid[1])
    size = float(np.clip(2000 / len(shade), 1, 14))
    for places, (layer, found) in zip(axes, layers.items()):
        after = [projection for name, projection in found.items() if name != BEFORE]
        for place, name in zip(places, versions):
            if name not in found:
                place.set_visible(False)
                continue
            prefix, points = np.split(found[name].points, [found[name].num_prefix])
            sharing = [found[name]] if name == BEFORE else after
            limit = 1.05 * max(np.abs(each.points).max() for each in sharing) or 1.0
            place.set(xticks=[], yticks=[], xlim=(-limit, limit), ylim=(-limit, limit))
            place.set_box_aspect(1)
            place.set_xlabel('first component', fontsize=TEXT)
            cells = place.scatter(*points.T, c=shade, cmap=SEQUENTIAL, s=size, linewidths=0)
            crosses = place.scatter(*prefix.T, c='black', marker='x', s=30, linewidths=1)
            numbers = f'{found[name].explained.sum():.0%}, {found[name].spread:.3g}'
            place.set_title(f'{name}: {numbers}', fontsize=TEXT, pad=3)
        places[0].set_ylabel(f'{layer}\nsecond component', fontsize=TEXT)
    bar = figure.colorbar(cells, ax=axes, aspect=30, ticks=[0, grid[0] - 1])
    bar.ax.set_yticklabels(['top', 'bottom'], fontsize=TEXT)
    bar.ax.invert_yaxis()  # as in the image
    bar.set_label('place of the token in the image', fontsize=TEXT)
    if len(prefix):
        add_key(figure, **{'prefix tokens': crosses})
    add_note(
        figure,
        'above a plot: share of the variance in this plane; root mean square distance from the mean',
    )
    return figure
