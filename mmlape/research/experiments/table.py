"""Tables in Markdown: mean and standard deviation over seeds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

START, END = '<!-- table: written by the command -->', '<!-- end of the table -->'


def replace_table(page: str, table: str, start: str = START, end: str = END) -> str:
    """Replace the text between two marks of a page.

    Raises:
        ValueError: If the page does not have the two marks once each.
    """
    if page.count(start) != 1 or page.count(end) != 1:
        raise ValueError(f'the page must hold {start!r} and {end!r} once each')
    before, rest = page.split(start)
    return f'{before}{start}\n\n{table}\n{end}{rest.split(end)[1]}'


def mean_and_deviation(values: list[float], digits: int = 3) -> str:
    """``mean ± standard deviation``; of one value, the value; of none, ``-``."""
    if not values:
        return '-'
    if len(values) == 1:
        return f'{values[0]:.{digits}f}'
    return f'{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}'


def score_of(runs: list[dict[str, Any]], variant: str, metric: str = 'mIoU') -> str:
    """Mean and standard deviation over the seeds of a variant."""
    return mean_and_deviation([run[metric] for run in runs if run['variant'] == variant])


def markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = [head, ['---'] * len(head), *rows]
    return [f'| {" | ".join(line)} |' for line in lines]


def about_runs(runs: list[dict[str, Any]], variants: Iterable[str], noun: str) -> str:
    """A line about the runs: seeds of each variant, iterations, devices and seconds."""
    if not runs:
        return 'No runs yet.'
    counts = [sum(run['variant'] == variant for run in runs) for variant in variants]
    seeds = ' to '.join(map(str, sorted({min(counts), max(counts)})))
    iterations, devices = (
        ', '.join(map(str, sorted({run[key] for run in runs}))) for key in ('iterations', 'device')
    )
    seconds = np.median([run['seconds'] for run in runs])
    return (
        f'Seeds of each {noun}: {seeds}. {len(runs)} runs of {iterations} iterations on {devices}, '
        f'{seconds:.0f} s each (median).'
    )
