"""Pictures of what this room computes about position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from mmlape.analysis.panels import (
    DIVERGING,
    OUTLINE,
    PER_ROW,
    SEQUENTIAL,
    SMOOTH,
    add_scale,
    new_figure,
    new_panels,
    show_map,
    symmetric_scale,
)

from .channel_kinds import KINDS, ChannelKinds
from .correlation import Correlations
from .gabor_fit import GaborFit
from .order import PatchOrder
from .scores import PositionScores
from .tables import EmbeddingTable, pick_channels


def draw_correlations(correlations: Correlations) -> Figure:
    """Matrices, and under each the map of the chosen token (LaPE, ICCV 2023, Figures 3 and 4).

    All share one colour scale, from the least correlation in the picture to 1. The chosen token is marked; grey is
    where there is no correlation.
    """
    low = _least([correlations.matrices, correlations.maps])
    return _draw_matrices(correlations, SEQUENTIAL, (low, 1), 'cosine similarity')


def draw_scores(scores: PositionScores) -> Figure:
    """What position adds to the scores of each layer, queries by keys, and under each the chosen query's map.

    All share one colour scale around zero.
    """
    scale = symmetric_scale(scores.matrices)
    return _draw_matrices(scores, DIVERGING, scale, 'added to the score')


def draw_patch_order(states: Mapping[str, PatchOrder]) -> Figure:
    """An image, its patches in another order, and how far each patch's last token differs between the two.

    All maps share one colour scale, from 0 to the largest difference; the mean is in their titles.

    Args:
        states: By what the network is, e.g. ``'without position'``; of the same image and order.
    """
    first = next(iter(states.values()))
    ratio = first.image.shape[1] / first.image.shape[0]
    columns = 2 + len(states)
    figure, axes = new_panels(1, columns, [ratio] * columns, with_scale=True)
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
    figure = new_figure(8, 5)
    axes = figure.add_axes((0.09, 0.11, 0.78, 0.8))
    image = axes.imshow(
        rows, cmap=DIVERGING, clim=symmetric_scale(rows), aspect='auto', interpolation=SMOOTH
    )
    if table.num_prefix:
        axes.axhline(table.num_prefix - 0.5, color='black', linewidth=0.8)
    height, width = table.grid
    axes.set_xlabel(table.columns)
    axes.set_ylabel(table.rows)
    axes.set_title(f'{table.num_prefix} prefix + {height} x {width} {table.rows}s', fontsize=9)
    figure.colorbar(image, cax=figure.add_axes((0.89, 0.11, 0.02, 0.8)))
    return figure


def draw_channels(
    table: EmbeddingTable,
    channels: Sequence[int] | None = None,
    index: int = 0,
    labels: Sequence[str] | None = None,
) -> Figure:
    """Maps of single channels, each with a colour scale of its own (Gabor position encoding, Figure 4).

    Args:
        table: From :func:`~mmlape.analysis.embedding_table`.
        channels: Default None: 24 evenly spread ones.
        index: Table where there are several. Default 0.
        labels: A word for every channel of the table, e.g. its kind. Default None.
    """
    maps = table.maps(index)
    chosen = pick_channels(len(maps), channels)
    columns = min(len(chosen), 8)
    figure, axes = new_panels(-(-len(chosen) // columns), columns)
    for place, channel in zip(axes.flat, chosen):
        label = f'{channel}' if labels is None else f'{channel} {labels[channel]}'
        show_map(place, maps[channel], DIVERGING, symmetric_scale(maps[channel]), label)
    return figure


def draw_grids(
    tables: Sequence[EmbeddingTable],
    maps: Sequence[np.ndarray],
    channels: Sequence[int] | None = None,
    index: int = 0,
) -> Figure:
    """The same embedding at several grids: the centre's correlation map, then single channels, one column per grid.

    Args:
        tables: One per grid.
        maps: ``(H, W)`` each, the correlation of the centre with every cell.
        channels: Default None: 4 evenly spread ones.
        index: Table where there are several. Default 0.
    """
    per_grid = [table.maps(index) for table in tables]
    chosen = pick_channels(len(per_grid[0]), channels, count=4)
    ratios = [table.grid[1] / table.grid[0] for table in tables]
    figure, axes = new_panels(len(chosen) + 1, len(tables), width_ratios=ratios)
    # One scale per row, so that what changes with the grid is seen.
    low = _least(maps)
    for column, table in enumerate(tables):
        show_map(axes[0, column], maps[column], SEQUENTIAL, (low, 1), '{} x {}'.format(*table.grid))
        for row, channel in enumerate(chosen, start=1):
            scale = symmetric_scale(np.concatenate([maps[channel].ravel() for maps in per_grid]))
            show_map(axes[row, column], per_grid[column][channel], DIVERGING, scale)
            axes[row, 0].set_ylabel(f'channel {channel}', fontsize=8)
    axes[0, 0].set_ylabel('correlation\nwith the centre', fontsize=8)
    return figure


def draw_gabor_fit(
    maps: np.ndarray, fit: GaborFit, kinds: ChannelKinds | None = None, per_kind: int = 4
) -> Figure:
    """Learned channels above, what was fitted below, on one scale; the best-fitted channels of each kind.

    Args:
        maps: ``(C, H, W)``, what was fitted.
        fit: Its fit.
        kinds: Default None: channels are taken evenly spread in place of by kind.
        per_kind: Channels of each kind. Default 4.
    """
    if kinds is None:
        chosen = pick_channels(len(maps), count=4 * per_kind)
    else:
        order = np.argsort(-fit.r2, kind='stable')
        chosen = [
            channel for kind in KINDS for channel in order[kinds.kinds[order] == kind][:per_kind]
        ]
    columns = min(len(chosen), 8)
    figure, axes = new_panels(2 * -(-len(chosen) // columns), columns)
    for place, channel in enumerate(chosen):
        band, column = divmod(place, columns)
        mean = maps[channel].mean()
        learned, fitted = maps[channel] - mean, fit.maps[channel] - mean
        scale = symmetric_scale(learned)
        kind = '' if kinds is None else f' {kinds.kinds[channel]}'
        show_map(axes[2 * band, column], learned, DIVERGING, scale, f'{channel}{kind}')
        title = f'R\N{SUPERSCRIPT TWO} {fit.r2[channel]:.2f}'
        show_map(axes[2 * band + 1, column], fitted, DIVERGING, scale, title)
    for band in range(len(axes) // 2):
        axes[2 * band, 0].set_ylabel('learned', fontsize=8)
        axes[2 * band + 1, 0].set_ylabel('fitted', fontsize=8)
    return figure


def _draw_matrices(
    found: Correlations | PositionScores, cmap: str, scale: tuple[float, float], label: str
) -> Figure:
    """Matrices of tokens by tokens, and under each the map of the chosen token, which is marked."""
    names = found.names
    columns = min(len(names), PER_ROW)
    figure, axes = new_panels(2 * -(-len(names) // PER_ROW), columns, with_scale=True)
    for index, name in enumerate(names):
        band, column = divmod(index, columns)
        upper, lower = axes[2 * band, column], axes[2 * band + 1, column]
        image = show_map(upper, found.matrices[index], cmap, scale, name)
        show_map(lower, found.maps[index], cmap, scale)
        if not isinstance(found.token, int):
            lower.plot(*found.token[::-1], marker='x', color='black', path_effects=OUTLINE)
    axes[0, 0].set_ylabel('token x token', fontsize=8)
    axes[1, 0].set_ylabel(_token_name(found.token), fontsize=8)
    add_scale(figure, image, label)
    return figure


def _least(correlations: Sequence[np.ndarray]) -> float:
    """The lower end of a scale that ends at 1."""
    finite = np.concatenate([part[np.isfinite(part)] for part in correlations])
    return float(min(finite.min(), 0.999)) if finite.size else -1.0


def _token_name(token: tuple[int, int] | int) -> str:
    return f'prefix token {token}' if isinstance(token, int) else 'token ({}, {})'.format(*token)
