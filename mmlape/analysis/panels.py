"""Panels of a picture, off screen and without pyplot's global state: what every drawing of this room is made of."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from PIL import Image

PER_ROW = 7
# Inches: a panel, and what is left of it for its name.
CELL, LABEL = 1.6, 0.45
# For a colour scale beside them.
SCALE = 0.9
# Between plots with ticks.
GAP = 0.4
DPI = 100
# Black and white stay what they are in a palette of few colours.
OUTLINE = [withStroke(linewidth=3, foreground='white')]
# Where a correlation is undefined (a token without position).
UNDEFINED = '0.8'
# Matplotlib's name for: squares stay squares, and what has more cells than pixels is averaged.
SMOOTH = 'antialiased'
DIVERGING, SEQUENTIAL = 'PuOr_r', 'viridis'


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG of at most 256 colours (a fifth of the size); the file is never seen half written."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    figure.savefig(buffer, format='png', dpi=DPI)
    image = (
        Image.open(buffer)
        .convert('RGB')
        .quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    partial = path.with_name(path.name + '.partial')
    image.save(partial, format='PNG', optimize=True)
    os.replace(partial, path)
    return path


def new_figure(width: float, height: float) -> Figure:
    """An empty figure, sides in inches."""
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def new_panels(
    rows: int,
    columns: int,
    width_ratios: Sequence[float] | None = None,
    cell: float = CELL,
    with_scale: bool = False,
) -> tuple[Figure, np.ndarray]:
    """Empty panels without ticks, ``(rows, columns)``; square unless ratios of width to height are given.

    ``with_scale``: leave room to their right for :func:`add_scale`.
    """
    ratios = [1.0] * columns if width_ratios is None else list(width_ratios)
    panels = sum(ratios) * cell + LABEL
    width = panels + (SCALE if with_scale else 0.02 * panels)
    height = rows * (cell + 0.22) + 0.25
    figure = new_figure(width, height)
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        width_ratios=ratios,
        gridspec_kw=dict(
            left=LABEL / width, right=panels / width, bottom=0.05 / height, top=1 - 0.25 / height
        )
        | dict(wspace=0.08, hspace=0.32 / cell),
    )
    for place in axes.flat:
        place.set_xticks([])
        place.set_yticks([])
        place.set_frame_on(False)
    return figure, axes


def new_plots(
    rows: int, columns: int, right: float = 0.985, share_y: bool = True
) -> tuple[Figure, np.ndarray]:
    """Empty plots with ticks, ``(rows, columns)``, that share their y axis unless told otherwise."""
    width = (columns * (CELL + (0 if share_y else GAP)) + LABEL) / right
    height = rows * (CELL + GAP) + 0.25
    figure = new_figure(width, height)
    axes = figure.subplots(
        rows,
        columns,
        squeeze=False,
        sharey=share_y,
        gridspec_kw=dict(
            left=(LABEL + 0.1) / width, right=right, bottom=GAP / height, top=1 - 0.25 / height
        )
        | dict(wspace=0.08 if share_y else GAP / CELL, hspace=GAP / CELL),
    )
    for place in axes.flat:
        place.tick_params(labelsize=6)
    return figure, axes


def show_map(
    axes: Axes, values: np.ndarray, cmap: str, scale: tuple[float, float], title: str = ''
) -> AxesImage:
    """Show ``(H, W)`` on a colour scale; grey where a value is not finite."""
    axes.set_facecolor(UNDEFINED)
    axes.patch.set_visible(True)
    axes.set_frame_on(True)
    axes.set_title(title, fontsize=8, pad=3)
    return axes.imshow(np.ma.masked_invalid(values), cmap=cmap, clim=scale, interpolation=SMOOTH)


def add_scale(figure: Figure, image: AxesImage, label: str) -> None:
    """The colour scale that all panels share, to the right of them; it takes ``SCALE`` inches."""
    inch = 1 / figure.get_figwidth()
    right = max(axes.get_position().x1 for axes in figure.axes)
    bar = figure.add_axes((right + 0.15 * inch, 0.15, 0.1 * inch, 0.7))
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10])
    figure.colorbar(image, cax=bar, ticks=ticks).set_label(label, fontsize=8)
    bar.tick_params(labelsize=7)


def symmetric_scale(values: np.ndarray) -> tuple[float, float]:
    """A scale around zero that holds all values."""
    limit = float(np.abs(values).max()) or 1.0
    return -limit, limit
