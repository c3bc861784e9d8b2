"""Tables and pictures of records: one model, or several beside each other, each with several seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mmlape.apps.report.names import names_of

from . import CORRUPTIONS, EXTRA, GROUPS, SEVERITIES
from .scores import (
    CLEAN,
    METRICS,
    RENDITIONS,
    Results,
    corruption_errors,
    grid_of,
    headline_of,
    mean_corruption_error,
    mean_performance,
    relative_corruption_errors,
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
        record: As :func:`~mmlape.research.robustness.read_record` gives it.
        metric: Which metric; default :func:`~mmlape.research.robustness.headline_of`.

    Raises:
        ValueError: There is no such metric.
    """
    results = record['results']
    metric = headline_of(results, metric)
    errors = corruption_errors(results) if _has_errors(record, metric) else {}
    shown = _shown(metric)
    head = [shown, *map(str, SEVERITIES), 'mean', *(['CE'] if errors else [])]
    names, rows = CORRUPTIONS + EXTRA, []
    for name, cells in zip(names, _unit(metric) * grid_of(results, metric, names)):
        if np.isfinite(cells).any():
            row = [*cells, cells.mean(), *([errors.get(name)] if errors else [])]
            rows.append([name.replace('_', ' '), *map(_number, row)])
    lines = _table(head, rows) if rows else []
    summary = [[title, _number(value)] for title, value in _summary(record, metric).items()]
    return '\n'.join([*lines, '', *_table([record['name'], shown], summary)]) + '\n'


def compare(records: Records, metric: str | None = None) -> str:
    """Several models, as Markdown: a row for each, means and standard deviations over its records (seeds).

    Args:
        records: By the name of the model.
        metric: Which metric; default that of the first record.

    Raises:
        ValueError: There is no such metric in one of them.
    """
    metric = _common_metric(records, metric)
    columns = _spreads(records, lambda record: _summary(record, metric))
    lines = _table([_shown(metric), *columns], [*zip(records, *columns.values())])
    means = _spreads(records, lambda record: _means(record, metric))
    rows = [[title, *cells] for title, cells in means.items()]
    return '\n'.join([*lines, '', *_table(['mean over severities', *records], rows)]) + '\n'


def draw(records: Records, metric: str | None = None) -> Figure:
    """The metric over severity, a panel for all corruptions and for each group, a line for each model.

    A band is the standard deviation over a model's records.

    Args:
        records: By the name of the model.
        metric: Which metric; default that of the first record.

    Raises:
        ValueError: There is no such metric in one of them.
    """
    # Matplotlib is loaded by what draws alone.
    from mmlape.apps.report import line_style
    from mmlape.research.analysis.figures import TEXT, new_plots

    metric = _common_metric(records, metric)
    grids = [grid_of(record['results'], metric) for many in records.values() for record in many]
    in_all = np.flatnonzero(np.isfinite(grids).any(axis=2).all(axis=0))
    common = tuple(CORRUPTIONS[index] for index in in_all)  # so that every line is of the same
    title = 'all 15' if common == CORRUPTIONS else f'{len(common)} of 15'
    groups = {name: names for name, names in GROUPS.items() if {*names} & {*common}}
    panels = {title: common or CORRUPTIONS, **groups}
    figure, ((*places,),) = new_plots(1, len(panels))
    for place, (title, names) in zip(places, panels.items()):
        for number, (name, many) in enumerate(records.items()):
            curves = [severity_means(record['results'], metric, names) for record in many]
            at = sorted(set.intersection(*(set(curve) for curve in curves)))
            values = _unit(metric) * np.array([[curve[s] for s in at] for curve in curves])
            mean = values.mean(0)
            style = line_style(number, label=name, marker='.', markersize=4)
            place.plot(at, mean, **style)
            if len(many) > 1:
                spread = values.std(0, ddof=1)
                place.fill_between(
                    at,
                    mean - spread,
                    mean + spread,
                    color=style['color'],
                    alpha=0.15,
                    linewidth=0,
                )
        place.set_title(title, fontsize=TEXT, pad=3)
        place.set_xticks([0, *SEVERITIES])
        place.set_xlabel('severity', fontsize=TEXT, labelpad=1)
    unit = ' (%)' if metric in METRICS else ''
    places[0].set_ylabel(f'{_shown(metric)}{unit}', fontsize=TEXT, labelpad=1)
    figure.legend(
        *places[0].get_legend_handles_labels(), loc='outside lower center', ncols=3, fontsize=TEXT, frameon=False
    )  # fmt: skip
    if any(len(many) > 1 for many in records.values()):
        figure.suptitle('bands: standard deviation over trainings', fontsize=TEXT)
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
        # DTN's Table 6 has this for ViT: 25 for brightness, over AlexNet's, would be less than the clean error.
        found['mean error'] = None if performance is None else 100 - performance[0]
        found['mCE'] = mean_corruption_error(corruption_errors(results))
        found['relative mCE'] = mean_corruption_error(relative_corruption_errors(results))
    if RENDITIONS in results:
        found['ImageNet-R'] = results[RENDITIONS]['subset/top1']
    return found


def _has_errors(record: Mapping[str, Any], metric: str) -> bool:
    """Whether AlexNet's errors are of the same classes."""
    return bool(record.get('imagenet')) and metric == METRICS[0]


def _shown(metric: str) -> str:
    """The name that people use."""
    return names_of([metric])[metric]


def _unit(metric: str) -> float:
    return 100.0 if metric.startswith(_FRACTIONS) else 1.0


def _common_metric(records: Records, metric: str | None) -> str:
    every = [record['results'] for many in records.values() for record in many]
    metric = headline_of(every[0], metric)
    for results in every:
        headline_of(results, metric)
    return metric


def _means(record: Mapping[str, Any], metric: str) -> dict[str, float]:
    """Return the mean of each corruption over severities; NaN where one is missing."""
    means = _unit(metric) * grid_of(record['results'], metric).mean(axis=1)
    return dict(zip([name.replace('_', ' ') for name in CORRUPTIONS], means.tolist()))


def _spreads(
    records: Records, figures: Callable[[Mapping[str, Any]], Mapping[str, float | None]]
) -> dict[str, list[str]]:
    """Mean and standard deviation of each model by title; titles without a figure in any record are left out."""
    found = [[figures(record) for record in many] for many in records.values()]
    titles = dict.fromkeys(title for many in found for each in many for title in each)
    values = {
        title: [np.array([each.get(title) for each in many], dtype=float) for many in found]
        for title in titles
    }
    return {
        title: [_spread(of_model) for of_model in models]
        for title, models in values.items()
        if np.isfinite(np.concatenate(models)).any()
    }


def _number(value: float | None) -> str:
    return '-' if value is None or not np.isfinite(value) else f'{value:.1f}'


def _spread(values: np.ndarray) -> str:
    """``mean ± standard deviation``; - where one is missing."""
    if len(values) == 1 or not np.isfinite(values).all():
        return _number(values.mean())
    return f'{values.mean():.1f} ± {values.std(ddof=1):.1f}'


def _table(head: list[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ['---', *['---:'] * (len(head) - 1)], *rows]
    return [f'| {" | ".join(line)} |' for line in lines]
