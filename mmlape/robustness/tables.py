"""Tables and pictures of records: one model, or several beside each other, each with several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from . import CORRUPTIONS, EXTRA, GROUPS, SEVERITIES
from .scores import (
    CLEAN,
    METRICS,
    RENDITIONS,
    Results,
    cell_key,
    corruption_errors,
    headline_of,
    mean_corruption_error,
    mean_performance,
    relative_corruption_errors,
    row_of,
    severity_means,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Fractions of 1, where others are percentages.
_FRACTIONS = ('coco/', 'pascal_voc/')

Records = Mapping[str, Sequence[Mapping[str, Any]]]


def describe(record: Mapping[str, Any], metric: str | None = None) -> str:
    """Everything about one record, as Markdown: the metric by corruption and severity, and the means.

    Args:
        record: As :func:`~mmlape.robustness.read_record` gives it.
        metric: Which metric; default :func:`~mmlape.robustness.headline_of`.

    Raises:
        ValueError: There is no such metric.
    """
    results = record['results']
    metric = headline_of(results, metric)
    unit = _unit(metric)
    errors = corruption_errors(results) if _has_errors(record, metric) else {}
    head = [metric, *map(str, SEVERITIES), 'mean', *(['CE'] if errors else [])]
    rows = []
    for name in CORRUPTIONS + EXTRA:
        cells = [results.get(cell_key(name, s), {}).get(metric) for s in SEVERITIES]
        if all(cell is None for cell in cells):
            continue
        whole = [unit * cell for cell in cells if cell is not None]
        mean = np.mean(whole) if len(whole) == len(SEVERITIES) else None
        row = [name.replace('_', ' '), *(_number(cell and unit * cell) for cell in cells)]
        rows.append([*row, _number(mean), *([_number(errors.get(name))] if errors else [])])
    lines = _table(head, rows) if rows else []
    summary = [[title, _number(value)] for title, value in _summary(record, metric).items()]
    return '\n'.join([*lines, '', *_table([record['name'], metric], summary)]) + '\n'


def compare(records: Records, metric: str | None = None) -> str:
    """Several models, as Markdown: a row for each, means and standard deviations over its records (seeds).

    Args:
        records: By the name of the model.
        metric: Which metric; default that of the first record.

    Raises:
        ValueError: There is no such metric in one of them.
    """
    metric = _common_metric(records, metric)
    found = {name: [_summary(record, metric) for record in many] for name, many in records.items()}
    titles = list(dict.fromkeys(t for many in found.values() for each in many for t in each))
    titles = [
        t for t in titles if any(each.get(t) is not None for m in found.values() for each in m)
    ]
    rows = [
        [name, *(_spread([each.get(title) for each in many]) for title in titles)]
        for name, many in found.items()
    ]
    lines = _table([metric, *titles], rows)
    names = [
        n for n in CORRUPTIONS if any(_means(r, metric, n) for m in records.values() for r in m)
    ]
    by_corruption = [
        [
            n.replace('_', ' '),
            *(_spread([_means(r, metric, n) for r in m]) for m in records.values()),
        ]
        for n in names
    ]
    return (
        '\n'.join([*lines, '', *_table(['mean over severities', *records], by_corruption)]) + '\n'
    )


def draw(records: Records, metric: str | None = None) -> Figure:
    """The metric over severity, a panel for all corruptions and for each group, a line for each model.

    A band is the standard deviation over a model's records.

    Args:
        records: By the name of the model.
        metric: Which metric; default that of the first record.

    Raises:
        ValueError: There is no such metric in one of them.
    """
    from mmlape.analysis.figures import new_plots  # Matplotlib is loaded by what draws alone

    metric = _common_metric(records, metric)
    measured = [
        n
        for n in CORRUPTIONS
        if any(row_of(r['results'], metric, n) for m in records.values() for r in m)
    ]
    all_15 = f'{len(measured)} of 15' if len(measured) < len(CORRUPTIONS) else 'all 15'
    panels = {all_15: CORRUPTIONS, **GROUPS}
    figure, ((*places,),) = new_plots(1, len(panels))
    for place, (title, names) in zip(places, panels.items()):
        for name, many in records.items():
            curves = [severity_means(record['results'], metric, names) for record in many]
            at = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = _unit(metric) * np.array([[curve[s] for s in at] for curve in curves])
            mean = values.mean(0)
            (line,) = place.plot(at, mean, marker='.', markersize=4, linewidth=1, label=name)
            if len(many) > 1:
                spread = values.std(0, ddof=1)
                place.fill_between(
                    at,
                    mean - spread,
                    mean + spread,
                    color=line.get_color(),
                    alpha=0.15,
                    linewidth=0,
                )
        place.set_title(title, fontsize=8, pad=3)
        place.set_xticks([0, *SEVERITIES])
        place.set_xlabel('severity', fontsize=7, labelpad=1)
    places[0].set_ylabel(metric, fontsize=7, labelpad=1)
    places[0].legend(fontsize=6, frameon=False)
    return figure


def _summary(record: Mapping[str, Any], metric: str) -> dict[str, float | None]:
    """Titles and figures of a model: percentages, or the metric's own unit."""
    results: Results = record['results']
    unit = _unit(metric)
    clean = results.get(CLEAN, {}).get(metric)
    performance = mean_performance(results, metric)
    found = {
        'clean': None if clean is None else unit * clean,
        'mPC': None if performance is None else unit * performance[0],
        'rPC (%)': None if performance is None else 100 * performance[1],
    }
    if _has_errors(record, metric):
        # What DTN's Table 6 has for ViT: 25 for brightness, over AlexNet's, would be less than the clean error.
        found['mean error'] = None if performance is None else 100 - performance[0]
        found['mCE'] = mean_corruption_error(corruption_errors(results))
        found['relative mCE'] = mean_corruption_error(relative_corruption_errors(results))
    if RENDITIONS in results:
        found['ImageNet-R'] = results[RENDITIONS]['subset/top1']
    return found


def _has_errors(record: Mapping[str, Any], metric: str) -> bool:
    """Whether AlexNet's errors are of the same classes."""
    return bool(record.get('imagenet')) and metric == METRICS[0]


def _unit(metric: str) -> float:
    return 100.0 if metric.startswith(_FRACTIONS) else 1.0


def _common_metric(records: Records, metric: str | None) -> str:
    every = [record['results'] for many in records.values() for record in many]
    metric = headline_of(every[0], metric)
    for results in every:
        headline_of(results, metric)
    return metric


def _means(record: Mapping[str, Any], metric: str, name: str) -> float | None:
    """Of a corruption, over severities; None where one is missing."""
    cells = [record['results'].get(cell_key(name, s), {}).get(metric) for s in SEVERITIES]
    return None if None in cells else _unit(metric) * float(np.mean(cells))


def _number(value: float | None) -> str:
    return '-' if value is None or not np.isfinite(value) else f'{value:.1f}'


def _spread(values: Sequence[float | None]) -> str:
    """``mean ± standard deviation``; - where one is missing."""
    if any(value is None for value in values):
        return '-'
    numbers = np.array(values, dtype=float)
    if len(numbers) == 1:
        return _number(numbers[0])
    return f'{numbers.mean():.1f} ± {numbers.std(ddof=1):.1f}'


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ['---', *['---:'] * (len(head) - 1)], *rows]
    return [f'| {" | ".join(line)} |' for line in lines]
