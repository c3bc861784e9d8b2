"""Classes in a report: how often they occur, how well they are found, and at which score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .curves import figure_png, line_style
from .page import folded, picture, table
from .rates import BINS, ScoreCounts
from .tally import IOU, Tally

_MOST_ROWS = 30  # a longer table is folded
_MOST_LINES = 10  # colours in a figure that can be told apart


def class_table(
    tally: Tally,
    classes: Sequence[str],
    trained: tuple[Mapping[str, int], Mapping[str, int]] | None = None,
) -> str:
    """A row for each class and one for all: images, boxes or pixels, and what share is right.

    Args:
        tally: Of a validation.
        classes: Names.
        trained: Of the training data, images of each class (under '' all), and its boxes or pixels. Default None: they
            were not counted.
    """
    boxes, what = tally.boxes, 'boxes' if tally.boxes else 'pixels'
    true = tally.counts.true if boxes else tally.confusion.sum(axis=1)
    if not (tally.total and true.any()):  # there are no such labels: whole images are classified
        return ''
    head: list[str] = ['class']
    columns: list[list[Any]] = [[*classes, 'all']]
    if trained:
        images, objects = trained
        head += [f'training images (of {images[""]})', f'training {what}']
        columns += [[*(images[name] for name in classes), '']]
        columns += [[*(objects[name] for name in classes), sum(objects.values())]]
    head += [f'validation images (of {tally.total})', f'validation {what}']
    columns += [[*tally.images.tolist(), ''], [*true.tolist(), int(true.sum())]]
    place = tally.counts.best() if boxes else None
    if not boxes:
        head += ['IoU (%)', 'accuracy (%)']
        columns += _shares_of_pixels(tally.confusion)
    elif place is not None:
        head += ['precision', 'recall', 'F1']
        columns += [_texts(each[:, place], 3) for each in tally.counts.rates()]
    rows = [
        [f'{each:,}' if isinstance(each, int) else each for each in row] for row in zip(*columns)
    ]
    return folded(table(rows, head), f'{len(classes)} classes', len(rows) > _MOST_ROWS)


def _shares_of_pixels(confusion: np.ndarray) -> list[list[str]]:
    """IoU and accuracy of each class, and their means over those that occur, in %."""
    right, true, found = confusion.diagonal(), confusion.sum(axis=1), confusion.sum(axis=0)
    with np.errstate(invalid='ignore'):
        shares = [100 * right / (true + found - right), 100 * right / true]
    return [_texts(np.append(each, np.nanmean(each)), 1) for each in shares]


def _texts(values: np.ndarray, digits: int) -> list[str]:
    """Numbers, '' where there was nothing to divide by."""
    return ['' if np.isnan(value) else f'{value:.{digits}f}' for value in values]


def score_figures(counts: ScoreCounts, classes: Sequence[str]) -> str:
    """Precision, recall and F1 over the minimum score, and the F1 of each of a few classes."""
    place = counts.best()
    if place is None:
        return ''
    scores, rates = np.arange(BINS) / BINS, counts.rates()
    figures = [
        _figure(
            'all classes', scores, place, dict(zip(('precision', 'recall', 'F1'), rates[:, -1]))
        )
    ]
    if 1 < len(classes) <= _MOST_LINES:
        figures.append(_figure('F1 of each class', scores, place, dict(zip(classes, rates[2]))))
    said = (
        f'The F1 of all boxes is highest, {rates[2, -1, place]:.3f}, at a minimum score of {scores[place]:g}, '
        f'with precision {rates[0, -1, place]:.3f} and recall {rates[1, -1, place]:.3f}. A box is right if it has the '
        f'class of a true one and an IoU of at least {IOU} with its box; masks are not compared, and boxes in crowds '
        'are not counted.'
    )
    grid = ''.join(f'<figure>{picture(figure_png(figure), "png")}</figure>' for figure in figures)
    return f'<p>{escape(said)}</p><div class="grid">{grid}</div>'


def _figure(title: str, scores: np.ndarray, place: int, lines: Mapping[str, Any]) -> Figure:
    figure = Figure(figsize=(6, 3.6), layout='constrained')
    axes = figure.subplots()
    for number, (name, values) in enumerate(lines.items()):
        axes.plot(scores, values, **line_style(number, label=name))
    axes.axvline(
        scores[place], color='black', linestyle=':', label=f'best F1 of all: {scores[place]:g}'
    )
    axes.set(xlabel='minimum score', title=title, xlim=(0, 1), ylim=(0, 1.02))
    axes.legend(fontsize='small')
    return figure
