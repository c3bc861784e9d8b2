"""Losses and metrics that a training has logged, as a table and as a picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from mmlape.atomic import atomic_write
from mmlape.training.paper_hooks import RATIO_PREFIX

from .names import NO_METRICS

DASHES = ('-', '--', '-.', ':', (0, (4, 1, 1, 1, 1, 1)))
_LEAST_WIDTH = 600  # pixels: narrower ones are enlarged


def read_curves(work_dir: Path) -> list[dict[str, float]]:
    """Read what MMEngine has logged, in order: losses by iteration, metrics by epoch (``step``).

    Rows are of the last training and the runs that it resumed; rows that a later run logged again replace earlier ones.
    """
    rows: list[dict[str, float]] = []
    for file in sorted(work_dir.glob('*/vis_data/scalars.json')):
        new: list[dict[str, float]] = []
        for line in file.read_text(encoding='utf-8').splitlines():
            with suppress(json.JSONDecodeError):  # a kill cuts the last line
                row = json.loads(line)
                if not row['step'] and new:
                    # MMEngine counts epochs here, in a training by iterations too.
                    row['step'] = new[-1]['step']
                new.append(row)
        new = [row for row in new if row['step'] > 0]  # a test logs at step 0
        first = next((row['step'] for row in new if 'loss' in row), float('inf'))
        again = next((row['step'] for row in new if is_validation(row)), float('inf'))
        if first < float('inf') and not any('loss' in row and row['step'] < first for row in rows):
            rows = []  # it began anew
        rows = [row for row in rows if row['step'] < (first if 'loss' in row else again)] + new
    return rows


def is_validation(row: dict[str, float]) -> bool:
    """Whether a row has metrics, neither losses nor ratios of DTN."""
    return 'loss' not in row and any(
        name not in NO_METRICS and not name.startswith(RATIO_PREFIX) for name in row
    )


def write_table(rows: Sequence[dict[str, float]], path: Path) -> None:
    """All curves as CSV: a line for each logged step, a column for each name."""
    text = io.StringIO()
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = csv.DictWriter(text, names, lineterminator='\n')
    table.writeheader()
    table.writerows(rows)
    atomic_write(path, text.getvalue().encode())


def draw_curves(
    rows: Sequence[dict[str, float]], best: str | None, path: Path, name: str | None = None
) -> Path:
    """The loss and, where there is one, the metric ``best`` by epoch, as PNG; by iteration, where a training counts
    those. ``name``: what the metric is called in the picture. Default None: ``best``."""
    losses = [row for row in rows if 'loss' in row]
    scores = [(row['step'], row[best]) for row in rows if best in row]
    unit = unit_of(rows)
    figure = Figure(figsize=(8 if scores else 4, 3), layout='constrained')
    axes = figure.subplots(1, 2 if scores else 1, squeeze=False)[0]
    steps = [_exact_epoch(row, losses) if unit == 'epoch' else row['step'] for row in losses]
    marker = 'o' if len(losses) == 1 else ''
    axes[0].plot(steps, [row['loss'] for row in losses], marker=marker, color='tab:blue')
    axes[0].set(xlabel=unit, ylabel='training loss', ylim=(0, None))
    if scores:
        axes[1].plot(*zip(*scores), marker='o', color='tab:orange')
        axes[1].set(xlabel=unit, ylabel=name or best, ylim=(0, None))
    for place in axes:
        place.set_xlim(left=0)
        place.xaxis.set_major_locator(MaxNLocator(integer=True))
    return save_figure(figure, path)


def unit_of(rows: Sequence[dict[str, float]]) -> str:
    """Say what a training counts its validations by: ``'epoch'`` or ``'iteration'``."""
    losses = [row for row in rows if 'loss' in row]
    return 'epoch' if losses and 'epoch' in losses[-1] else 'iteration'


def line_style(number: int, **style: Any) -> dict[str, Any]:
    """Colour and dashes of a line: each alone tells up to five of them apart."""
    return dict(color=f'C{number}', linestyle=DASHES[number % len(DASHES)], linewidth=1.2, **style)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure as PNG, atomically."""
    atomic_write(Path(path), figure_png(figure))
    return Path(path)


def figure_png(figure: Figure) -> bytes:
    """A PNG of at most 256 colours (a fifth of the size), at least 600 pixels wide."""
    drawn, png = io.BytesIO(), io.BytesIO()
    style: Any = dict(format='png', bbox_inches='tight', pad_inches=0.05)
    figure.savefig(drawn, dpi=100, **style)
    image = Image.open(drawn).convert('RGB')
    if image.width < _LEAST_WIDTH:
        drawn = io.BytesIO()
        figure.savefig(drawn, dpi=105 * _LEAST_WIDTH / image.width, **style)
        image = Image.open(drawn).convert('RGB')
    image = image.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    image.save(png, format='PNG', optimize=True)
    return png.getvalue()


def _exact_epoch(row: dict[str, float], rows: Sequence[dict[str, float]]) -> float:
    """The epoch in which a line was logged, as a fraction by its iteration."""
    last = rows[-1]
    return row['step'] * last['epoch'] / last['step']


def best_scores(
    rows: Sequence[dict[str, float]], best: str, least: bool = False
) -> dict[str, float]:
    """All metrics of the validation with the highest ``best``, or the ``least``; {} where there was none."""
    validated = [row for row in rows if best in row]
    pick = min if least else max
    return pick(validated, key=lambda row: row[best]) if validated else {}
