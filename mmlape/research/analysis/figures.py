"""Figure layouts, off screen and without pyplot's global state: grids of axes for maps and for plots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.figure import Figure

# Inches: a map or plot, what is above a map for its title, and what a colour scale, legend or axis takes.
CELL, TITLE, SCALE = 1.7, 0.25, 0.9
TEXT = 8  # points
UNDEFINED = '0.8'  # where a correlation is undefined (a token without position)
SMOOTH = 'antialiased'  # squares stay squares, and what has more cells than pixels is averaged
DIVERGING, SEQUENTIAL = 'PuOr_r', 'viridis'


def around_zero(values: np.ndarray) -> tuple[float, float]:
    """A scale around zero that holds all values."""
    limit = float(np.abs(values).max()) or 1.0
    return -limit, limit


class Panel(NamedTuple):
    """A map, grey where a value is not finite."""

    values: np.ndarray  #: ``(H, W)``.
    title: str = ''
    cmap: str = DIVERGING
    scale: tuple[float, float] | None = None  #: Lowest and highest value; None: around zero.


def draw_maps(
    rows: Sequence[tuple[str, Sequence[Panel]]],
    scale: str = '',
    cell: float = CELL,
    ratios: Sequence[float] | None = None,
) -> tuple[Figure, np.ndarray]:
    """Draw rows of maps, each with its label on the left; rows may have different lengths.

    Args:
        rows: Label and panels of each row.
        scale: Label of the colour scale, that of the last panel. Default '': there is none.
        cell: Height of a map in inches.
        ratios: Width to height of each column. Default None: 1.

    Returns the figure and its axes ``(rows, columns)``."""
    columns = max(len(panels) for _, panels in rows)
    ratios = [1.0] * columns if ratios is None else ratios
    size = sum(ratios) * cell + (SCALE if scale else TITLE), len(rows) * (cell + TITLE)
    figure = Figure(figsize=size, layout='compressed')
    axes = figure.subplots(len(rows), columns, squeeze=False, width_ratios=ratios)
    for place in axes.flat:
        place.set(xticks=[], yticks=[], frame_on=False)
    for places, (label, panels) in zip(axes, rows):
        places[0].set_ylabel(label, fontsize=TEXT)
        for place, panel in zip(places, panels):
            place.set(facecolor=UNDEFINED, frame_on=True)
            place.set_title(panel.title, fontsize=TEXT, pad=3)
            limits = around_zero(panel.values) if panel.scale is None else panel.scale
            shown = np.ma.masked_invalid(panel.values)
            image = place.imshow(shown, cmap=panel.cmap, clim=limits, interpolation=SMOOTH)
    if scale:
        bar = figure.colorbar(image, ax=axes, aspect=40)
        bar.set_label(scale, fontsize=TEXT)
        bar.ax.tick_params(labelsize=TEXT)
    return figure, axes


def new_plots(
    rows: int, columns: int, legend: float = 0.0, share_y: bool = True
) -> tuple[Figure, np.ndarray]:
    """A figure layout for plots with ticks: axes ``(rows, columns)`` that share their y axis by default, with so many
    inches to their right for a legend (``loc='outside right center'``)."""
    size = columns * CELL + SCALE + legend, rows * (CELL + 2 * TITLE) + TITLE
    figure = Figure(figsize=size, layout='constrained')
    axes = figure.subplots(rows, columns, squeeze=False, sharey=share_y)
    for place in axes.flat:
        place.tick_params(labelsize=TEXT)
    return figure, axes


def add_key(figure: Figure, **marks: Artist) -> None:
    """Explain marks that all plots share, below them: ``equal_attention=line``."""
    names = [name.replace('_', ' ') for name in marks]
    figure.legend(
        [*marks.values()], names, loc='outside lower center', ncols=3, fontsize=TEXT, frameon=False
    )


def add_note(figure: Figure, text: str) -> None:
    """Explain a figure in a line below it."""
    figure.supxlabel(text, fontsize=TEXT)
