"""Pictures of what the other modules of this room compute, drawn off screen and without pyplot's global state."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from PIL import Image

from .channel_kinds import KINDS, ChannelKinds
from .correlation import Correlations
from .gabor_fit import GaborFit
from .tables import EmbeddingTable, pick_channels

PER_ROW = 7
# Inches: a panel, and what is left of it for its name.
CELL, LABEL = 1.6, 0.45
DPI = 100
# Black and white stay what they are in a palette of few colours.
OUTLINE = [withStroke(linewidth=3, foreground='white')]
# Where a correlation is undefined (a token without position).
UNDEFINED = '0.8'
# Matplotlib's name for: squares stay squares, and what has more cells than pixels is averaged.
SMOOTH = 'antialiased'
DIVERGING, SEQUENTIAL = 'PuOr_r', 'viridis'


def draw_correlations(correlations: Correlations) -> Figure:
    """Matrices, and under each the map of the chosen token (LaPE, ICCV 2023, Figures 3 and 4).

    All share one colour scale, from the least correlation in the picture to 1. The chosen token is marked; grey is
    where there is no correlation.
    """
    names = correlations.names
    bands = -(-len(names) // PER_ROW)
    columns = min(len(names), PER_ROW)
    figure, axes = _panels(2 * bands, columns, right=0.9)
    low = _least([correlations.matrices, correlations.maps])
    for index, name in enumerate(names):
        band, column = divmod(index, columns)
        upper, lower = axes[2 * band, column], axes[2 * band + 1, column]
        image = _show(upper, correlations.matrices[index], SEQUENTIAL, (low, 1), name)
        _show(lower, correlations.maps[index], SEQUENTIAL, (low, 1))
        if not isinstance(correlations.token, int):
            lower.plot(*correlations.token[::-1], marker='x', color='black', path_effects=OUTLINE)
    axes[0, 0].set_ylabel('token x token', fontsize=8)
    axes[1, 0].set_ylabel(_token_name(correlations.token), fontsize=8)
    bar = figure.add_axes((0.925, 0.15, 0.012, 0.7))
    figure.colorbar(image, cax=bar).set_label('cosine similarity', fontsize=8)
    bar.tick_params(labelsize=7)
    return figure


def draw_embedding(table: EmbeddingTable, index: int = 0) -> Figure:
    """One table as a matrix of tokens by channels; a line divides prefix rows from the grid's."""
    rows = table.table(index)
    figure = _figure(8, 5)
    axes = figure.add_axes((0.09, 0.11, 0.78, 0.8))
    image = axes.imshow(
        rows, cmap=DIVERGING, clim=_symmetric(rows), aspect='auto', interpolation=SMOOTH
    )
    if table.num_prefix:
        axes.axhline(table.num_prefix - 0.5, color='black', linewidth=0.8)
    height, width = table.grid
    axes.set_xlabel('channel')
    axes.set_ylabel('token')
    axes.set_title(f'{table.num_prefix} prefix + {height} x {width} tokens', fontsize=9)
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
    figure, axes = _panels(-(-len(chosen) // columns), columns)
    for place, channel in zip(axes.flat, chosen):
        label = f'{channel}' if labels is None else f'{channel} {labels[channel]}'
        _show(place, maps[channel], DIVERGING, _symmetric(maps[channel]), label)
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
    figure, axes = _panels(len(chosen) + 1, len(tables), width_ratios=ratios)
    # One scale per row, so that what changes with the grid is seen.
    low = _least(maps)
    for column, table in enumerate(tables):
        _show(axes[0, column], maps[column], SEQUENTIAL, (low, 1), '{} x {}'.format(*table.grid))
        for row, channel in enumerate(chosen, start=1):
            scale = _symmetric(np.concatenate([maps[channel].ravel() for maps in per_grid]))
            _show(axes[row, column], per_grid[column][channel], DIVERGING, scale)
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
    figure, axes = _panels(2 * -(-len(chosen) // columns), columns)
    for place, channel in enumerate(chosen):
        band, column = divmod(place, columns)
        mean = maps[channel].mean()
        learned, fitted = maps[channel] - mean, fit.maps[channel] - mean
        scale = _symmetric(learned)
        kind = '' if kinds is None else f' {kinds.kinds[channel]}'
        _show(axes[2 * band, column], learned, DIVERGING, scale, f'{channel}{kind}')
        title = f'R\N{SUPERSCRIPT TWO} {fit.r2[channel]:.2f}'
        _show(axes[2 * band + 1, column], fitted, DIVERGING, scale, title)
    for band in range(len(axes) // 2):
        axes[2 * band, 0].set_ylabel('learned', fontsize=8)
        axes[2 * band + 1, 0].set_ylabel('fitted', fontsize=8)
    return figure


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG of at most 256 colours (a fifth of the size); the file is never seen half written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=DPI)
    image = Image.open(buffer).convert('RGB').quantize(256, dither=Image.Dither.NONE)
    partial = path.with_name(path.name + '.partial')
    image.save(partial, format='PNG', optimize=True)
    os.replace(partial, path)
    return path


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _panels(
    rows: int, columns: int, right: float = 0.985, width_ratios: Sequence[float] | None = None
) -> tuple[Figure, np.ndarray]:
    """Empty panels without ticks, ``(rows, columns)``; square unless ratios of width to height are given."""
    ratios = [1.0] * columns if width_ratios is None else list(width_ratios)
    width = (sum(ratios) * CELL + LABEL) / right
    height = rows * (CELL + 0.22) + 0.25
    figure = _figure(width, height)
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        width_ratios=ratios,
        gridspec_kw=dict(
            left=LABEL / width, right=right, bottom=0.05 / height, top=1 - 0.25 / height
        )
        | dict(wspace=0.08, hspace=0.2),
    )
    for place in axes.flat:
        place.set_xticks([])
        place.set_yticks([])
        place.set_frame_on(False)
    return figure, axes


def _show(axes: Axes, values: np.ndarray, cmap: str, scale: tuple[float, float], title: str = ''):
    axes.set_facecolor(UNDEFINED)
    axes.patch.set_visible(True)
    axes.set_frame_on(True)
    axes.set_title(title, fontsize=8, pad=3)
    return axes.imshow(np.ma.masked_invalid(values), cmap=cmap, clim=scale, interpolation=SMOOTH)


def _symmetric(values: np.ndarray) -> tuple[float, float]:
    limit = float(np.abs(values).max()) or 1.0
    return -limit, limit


def _least(correlations: Sequence[np.ndarray]) -> float:
    """The lower end of a scale that ends at 1."""
    finite = np.concatenate([part[np.isfinite(part)] for part in correlations])
    return float(min(finite.min(), 0.999)) if finite.size else -1.0


def _token_name(token: tuple[int, int] | int) -> str:
    return f'prefix token {token}' if isinstance(token, int) else 'token ({}, {})'.format(*token)
