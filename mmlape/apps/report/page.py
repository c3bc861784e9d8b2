"""`report.html`: one file without scripts and without anything from the network."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mmlape.apps.inference.drawing import side_by_side
from mmlape.apps.inference.results import Result, read_picture
from mmlape.apps.inference.score import SCORE

from .names import for_people
from .tally import IOU, Example, Tally

_MOST_CLASSES = 24  # a larger matrix does not fit a screen: its commonest confusions are listed
_LISTED = 20
_LONGEST = 540  # pixels of an image's longer side
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0; display: block; overflow-x: auto }
td, th { border: 1px solid #ccc; padding: .2rem .6rem; text-align: right }
.grid { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fill, minmax(min(60rem, 100%), 1fr)) }
th:first-child, td:first-child { text-align: left }
img { max-width: 100% } figure { margin: 0 } pre { overflow-x: auto; background: #f5f5f5; padding: 1rem }
@media (max-width: 40rem) { .wide { overflow-x: auto } .wide img { max-width: none; width: 190% } }
"""


def page(title: str, sections: Iterable[tuple[str, str]]) -> str:
    """A page of sections: heading and HTML."""
    body = ''.join(f'<h2>{escape(name)}</h2>\n{content}\n' for name, content in sections if content)
    return (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n<h1>{escape(title)}</h1>\n{body}</html>\n'
    )


def table(rows: Iterable[Sequence[Any]], head: Sequence[str] = ()) -> str:
    """A table; '' without rows."""
    lines = [f'<tr>{"".join(f"<td>{_cell(each)}</td>" for each in row)}</tr>' for row in rows]
    top = f'<tr>{"".join(f"<th>{escape(each)}</th>" for each in head)}</tr>' if head else ''
    return f'<table>{top}{"".join(lines)}</table>' if lines else ''


def _cell(value: Any) -> str:
    return f'{value:.4g}' if isinstance(value, float) else escape(str(value))


def picture(data: bytes, kind: str, alt: str = '') -> str:
    """An image file inside the page; ``kind`` is ``'png'`` or ``'jpeg'``."""
    text = base64.b64encode(data).decode()
    return f'<img alt="{escape(alt)}" src="data:image/{kind};base64,{text}">'


def wide(data: bytes, kind: str, alt: str = '') -> str:
    """A :func:`picture` whose texts a telephone would make too small to read: it shows a part, and scrolls."""
    return f'<div class="wide">{picture(data, kind, alt)}</div>'


def folded(content: str, summary: str, is_long: bool = True) -> str:
    """HTML behind a line to click on, if it is long."""
    line = f'<summary>{escape(summary)}</summary>'
    return f'<details>{line}{content}</details>' if content and is_long else content


def code(text: str) -> str:
    """Text as it is."""
    return f'<pre>{escape(text)}</pre>'


def examples(some: Sequence[Example], classes: Sequence[str], palette: Any) -> str:
    """Images with the truth on the left and the prediction on the right."""
    parts = []
    for example in some:
        image = read_picture(example.path)
        truth, found = (
            Result(image, example.path, classes, palette=palette, **what)
            for what in (example.truth, example.found)
        )
        drawn = side_by_side(truth, found, longest=_LONGEST)
        name = f'{Path(example.path).name}: {example.score:.3f}'
        shown = wide(cv2.imencode('.jpg', drawn)[1].tobytes(), 'jpeg', name)
        parts.append(f'<figure>{shown}<figcaption>{escape(name)}</figcaption></figure>')
    return f'<div class="grid">{"".join(parts)}</div>' if parts else ''


def confusion(tally: Tally, classes: Sequence[str]) -> str:
    """The confusion matrix as HTML; for many classes, the commonest confusions."""
    if not tally.confusion.any():
        return ''
    names = [*classes, *(['background'] if tally.boxes else [])]
    what = (
        f"Boxes with a score of at least {tally.score:g} (the best F1's of the validation before, at first {SCORE}), "
        f'at an IoU of at least {IOU}; rows are true, columns predicted.'
        if tally.boxes
        else 'Rows are true, columns predicted; in % of the row.'
    )
    counts = tally.confusion
    shares = counts / counts.sum(axis=1, keepdims=True).clip(min=1)
    if len(names) <= _MOST_CLASSES:
        head = ''.join(f'<th>{escape(name)}</th>' for name in ['', *names])
        lines = ''
        for name, row, parts in zip(names, counts, shares, strict=True):
            cells = ''.join(_shaded(*pair, tally.boxes) for pair in zip(row, parts, strict=True))
            lines += f'<tr><th>{escape(name)}</th>{cells}</tr>'
        return f'<p>{what}</p><table><tr>{head}</tr>{lines}</table>'
    wrong = counts * (1 - np.eye(len(names), dtype=int))
    order = np.argsort(-wrong, axis=None)[:_LISTED]
    pairs = [np.unravel_index(place, wrong.shape) for place in order if wrong.flat[place]]
    rows = [(names[a], names[b], int(counts[a, b]), f'{shares[a, b]:.1%}') for a, b in pairs]
    return f'<p>The commonest of {len(names)} classes. {what}</p>' + table(
        rows, ('true', 'predicted', 'count', 'of the true')
    )


def _shaded(count: int, share: float, as_count: bool) -> str:
    text = f'{count}' if as_count else f'{100 * share:.1f}'
    return f'<td style="background:rgba(31,119,180,{0.8 * share:.2f})">{text}</td>'


def scores(best: Mapping[str, float], last: Mapping[str, float], unit: str) -> str:
    """Metrics of the best and of the last validation; ``unit``: of their ``step``."""
    then, now = for_people(best), for_people(last)
    rows = [(name, value, now.get(name, '')) for name, value in then.items()]
    head = (
        '',
        *(f'{name} ({unit} {row.get("step")})' for name, row in (('best', best), ('last', last))),
    )
    return table(rows, head)
