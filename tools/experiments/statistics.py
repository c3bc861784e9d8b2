"""What the records of an experiment say: means, paired differences with intervals, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from .recipes import DATA, Experiment
from .table import markdown_table

DRAWS = 10_000
LEVEL = 0.95  # that of all intervals of a table together


class Difference(NamedTuple):
    """A variant minus the baseline, in percentage points.

    Attributes:
        mean: Over the seeds.
        low, high: The interval of the bootstrap over images and seeds.
        better: The share of pairs of runs in which the variant is better, ties half.
        limit: The least difference that so many seeds with this spread can tell from chance; NaN for one seed.
        seeds: How many both have.
    """

    mean: float
    low: float
    high: float
    better: float
    limit: float
    seeds: int


def difference(
    ones: Sequence[dict[str, Any]], others: Sequence[dict[str, Any]], measure: str, comparisons: int
) -> Difference:
    """Compare the runs of two variants, paired by seed.

    Args:
        ones, others: The records of the variant and of the baseline.
        measure: The primary measure.
        comparisons: How many intervals hold together with :data:`LEVEL` (Bonferroni).

    Raises:
        ValueError: If they share no seed.
    """
    first, second = ({run['seed']: run for run in runs} for runs in (ones, others))
    seeds = sorted(first.keys() & second.keys())
    if not seeds:
        raise ValueError('the two variants share no seed')
    values = np.array([[r[s]['metrics'][measure] for s in seeds] for r in (first, second)])
    sampled = np.array([[r[s]['sampled'][measure] for s in seeds] for r in (first, second)])
    single, gaps = values[0] - values[1], sampled[0] - sampled[1]  # (seeds,), (seeds, samples)
    random = np.random.default_rng(0)
    chosen = random.integers(len(seeds), size=(DRAWS, len(seeds)))
    images = random.integers(gaps.shape[1], size=(DRAWS, 1))
    drawn = gaps[chosen, images].mean(1)
    tail = (1 - LEVEL) / comparisons / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    pairs = values[0][:, None] - values[1]
    better = (pairs > 0).mean() + (pairs == 0).mean() / 2
    limit = np.nan
    if len(seeds) > 1:
        spread = single.std(ddof=1) / len(seeds) ** 0.5
        limit = float(student.ppf(1 - tail, len(seeds) - 1) * spread)
    return Difference(
        float(single.mean()), float(low), float(high), float(better), limit, len(seeds)
    )


def differences(
    experiment: Experiment, runs: Sequence[dict[str, Any]], comparisons: int | None = None
) -> dict[str, Difference]:
    """Each variant that has been run beside the baseline, by name.

    Args:
        comparisons: As for :func:`difference`. Default: all that the experiment is to make.
    """
    of = {name: [run for run in runs if run['variant'] == name] for name in experiment.variants}
    base = of.pop(experiment.baseline, [])
    seeds = {run['seed'] for run in base}
    return {
        name: difference(found, base, DATA[experiment.data].measure, comparisons or len(of))
        for name, found in of.items()
        if seeds & {run['seed'] for run in found}
    }


def markdown(experiment: Experiment, runs: Sequence[dict[str, Any]]) -> str:
    """The table of an experiment: a row for each variant, means and standard deviations over seeds."""
    if not runs:
        return 'No run has a record yet.\n'
    names = list(dict.fromkeys(name for run in runs for name in run['metrics']))
    compared = differences(experiment, runs)
    rows = []
    for variant in experiment.variants:
        found = [run for run in runs if run['variant'] == variant]
        if not found:
            continue
        cells = [_spread([run['metrics'][name] for run in found]) for name in names]
        minutes = np.mean([run['processor_seconds'] for run in found]) / 60
        gap = [_gap(compared.get(variant))] if experiment.baseline else []
        rows.append(
            [variant, *cells, *gap, f'{found[0]["parameters"] / 1e6:.2f}', f'{minutes:.0f}']
        )
    head = [
        'variant',
        *names,
        *([f'difference of {DATA[experiment.data].measure}'] if compared else []),
    ]
    if experiment.baseline and not compared:
        rows = [[*row[: 1 + len(names)], *row[2 + len(names) :]] for row in rows]
    lines = markdown_table([*head, 'parameters (M)', 'minutes'], rows)
    seeds = sorted({run['seed'] for run in runs})
    machines = ', '.join(sorted({run['machine'] for run in runs}))
    note = f'Seeds {", ".join(map(str, seeds))}; {runs[0]["images"]} images; minutes of one core: {machines}.'
    return '\n'.join([*lines, '', note]) + '\n'


def _gap(found: Difference | None) -> str:
    """``+0.42 [-0.31, 1.10], P 0.72, limit 0.9``."""
    if found is None:
        return '-'
    return (
        f'{found.mean:+.2f} [{found.low:.2f}, {found.high:.2f}], '
        f'P {found.better:.2f}, limit {found.limit:.2f}'
    )


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f'{values[0]:.2f}'
    return f'{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}'
