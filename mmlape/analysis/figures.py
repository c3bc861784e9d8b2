"""Figure layouts, off screen and without pyplot's global state: grids of axes for maps and for plots."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from PIL import Image

from mmlape.atomic import atomic_write

# Inches: a map, and what is left of it for its name; for a colour scale; between plots with ticks.
CELL, LABEL, SCALE, GAP = 1.6, 0.45, 0.9, 0.4
UNDEFINED = '0.8'  # where a correlation is undefined (a token without position)
SMOOTH = 'antialiased'  # squares stay squares, and what has more cells than pixels is averaged


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a PNG of at most 256 colours (a fifth of the size), atomically."""
    drawn, png = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format='png', dpi=100)
    image = Image.open(drawn).convert('RGB')
    image = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(png, format='PNG', optimize=True)
    atomic_write(Path(path), png.getvalue())
    return Path(path)


def new_maps(
    rows: int,
    columns: int,
    width_ratios: Sequence[float] | None = None,
    cell: float = CELL,
    with_scale: bool = False,
) -> tuple[Figure, np.ndarray]:
    """A figure layout for maps: axes ``(rows, columns)`` without ticks, square unless ratios of width to height are
    given; ``with_scale`` leaves room for :func:`add_scale`."""
    ratios = [1.0] * columns if width_ratios is None else list(width_ratios)
    maps = sum(ratios) * cell + LABEL
    width, height = maps + (SCALE if with_scale else 0.02 * maps), rows * (cell + 0.22) + 0.25
    grid = dict(width_ratios=ratios, wspace=0.08, hspace=0.32 / cell, bottom=0.05 / height)
    grid |= dict(left=LABEL / width, right=maps / width, top=1 - 0.25 / height)
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False, gridspec_kw=grid)
    for place in axes.flat:
        place.set(xticks=[], yticks=[], frame_on=False)
    return figure, axes


def new_plots(
    rows: int, columns: int, legend: float = 0.0, share_y: bool = True
) -> tuple[Figure, np.ndarray]:
    """A figure layout for plots with ticks: axes ``(rows, columns)`` that share their y axis by default, with so many
    inches to their right for a legend."""
    plots = columns * (CELL + (0 if share_y else GAP)) + LABEL
    right = plots / (plots + legend) if legend else 0.985
    width = plots / right
    height = rows * (CELL + GAP) + 0.25
    grid = dict(wspace=0.08 if share_y else GAP / CELL, hspace=GAP / CELL, bottom=GAP / height)
    grid |= dict(left=(LABEL + 0.1) / width, right=right, top=1 - 0.25 / height)
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y, gridspec_kw=grid)
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
    """The colour scale that all maps share, to the right of them; it takes ``SCALE`` inches."""
    inch = 1 / figure.get_figwidth()
    right = max(axes.get_position().x1 for axes in figure.axes)
    bar = figure.add_axes((right + 0.15 * inch, 0.15, 0.1 * inch, 0.7))
    ticks = MaxNLocator(6, steps=[1, 2, 5, 10])
    figure.colorbar(image, cax=bar, ticks=ticks).set_label(label, fontsize=8)
    bar.tick_params(labelsize=7)
