"""Statistics of the records of an experiment: means, paired differences with intervals, and tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import t as student

from .recipes import DATA, Experiment
from .table import markdown_table, mean_and_deviation

DRAWS = 10_000
LEVEL = 0.95  # joint level of all intervals that are compared together


class Difference(NamedTuple):
    """A variant minus the baseline, in percentage points.

    Attributes:
        mean: Over the seeds.
        low, high: The interval of the bootstrap over images and seeds.
        better: The share of pairs of runs in which the variant is better, ties half.
        limit: The least difference that is significant in a paired t-test over the seeds.
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
        comparisons: For how many the level of the interval, :data:`LEVEL`, is corrected (Bonferroni).

    Raises:
        ValueError: If they share less than two seeds.
    """
    first, second = ({run['seed']: run for run in runs} for runs in (ones, others))
    seeds = sorted(first.keys() & second.keys())
    if len(seeds) < 2:
        raise ValueError(
            f'the two variants share {len(seeds)} of the two seeds that a comparison takes'
        )
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
    spread = single.std(ddof=1) / len(seeds) ** 0.5
    limit = float(student.ppf(1 - tail, len(seeds) - 1) * spread)
    return Difference(
        float(single.mean()), float(low), float(high), float(better), limit, len(seeds)
    )


def differences(
    experiment: Experiment, runs: Sequence[dict[str, Any]], view: str = ''
) -> dict[str, Difference]:
    """Each variant that has been run beside the baseline with two seeds or more, by name.

    Args:
        view: One of the experiment's views of the images. Default: the images as they are.
    """
    of = {name: [run for run in runs if run['variant'] == name] for name in experiment.variants}
    base = of.pop(experiment.baseline, [])
    measure = DATA[experiment.data].measure + (f', {view}' if view else '')
    comparisons = experiment.comparisons or len(of)
    seeds = {run['seed'] for run in base}
    return {
        name: difference(found, base, measure, comparisons * (len(experiment.views) if view else 1))
        for name, found in of.items()
        if len(seeds & {run['seed'] for run in found}) > 1
    }


def markdown(experiment: Experiment, runs: Sequence[dict[str, Any]]) -> str:
    """The tables of an experiment: a row for each variant, means and standard deviations over seeds."""
    if not runs:
        return 'No run has a record yet.\n'
    of = {name: [run for run in runs if run['variant'] == name] for name in experiment.variants}
    of = {name: found for name, found in of.items() if found}
    measure = DATA[experiment.data].measure
    names = [name for name in runs[0]['metrics'] if ', ' not in name]
    if experiment.views and not experiment.baseline:  # else differences tell of them
        names = [measure, *(f'{measure}, {view}' for view in experiment.views)]
    head = ['variant', *names, 'parameters (M)', 'saved (MB)', 'seconds per step', 'minutes']
    rows = [
        [
            variant,
            *(mean_and_deviation([run['metrics'][name] for run in found], 2) for name in names),
            f'{found[0]["parameters"] / 1e6:.2f}',
            f'{found[0]["saved_megabytes"]:.0f}' if 'saved_megabytes' in found[0] else '-',
            f'{np.median([run["step_seconds"] for run in found]):.2f}',
            f'{np.mean([run["processor_seconds"] for run in found]) / 60:.0f}',
        ]
        for variant, found in of.items()
    ]
    lines = markdown_table(head, rows)
    gaps = [
        [variant, f'{measure}, {view}' if view else measure, *difference_cells(found)]
        for view in ('', *experiment.views)
        for variant, found in differences(experiment, runs, view).items()
    ]
    if gaps:
        title = f'minus {experiment.baseline}'
        head = [title, 'of', 'difference', 'interval', 'better', 'limit', 'seeds']
        lines += ['', *markdown_table(head, gaps)]
    seeds = sorted({run['seed'] for run in runs})
    machines = ', '.join(sorted({run['machine'] for run in runs}))
    note = f'Seeds {", ".join(map(str, seeds))}; {runs[0]["images"]} validation images. One thread: {machines}.'
    return '\n'.join([*lines, '', note]) + '\n'


def difference_cells(found: Difference) -> list[str]:
    """Mean, interval, probability of improvement, limit and number of seeds, as in the tables."""
    interval = f'{found.low:+.2f} to {found.high:+.2f}'
    cells = [f'{found.mean:+.2f}', interval, f'{found.better:.0%}', f'{found.limit:.2f}']
    return [*cells, str(found.seeds)]
