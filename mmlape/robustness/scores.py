"""From what was measured to the figures of the papers: CE, mCE and relative mCE, mPC and rPC."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .names import CORRUPTIONS, SEVERITIES

__all__ = [
    'ALEXNET_CLEAN_ERROR',
    'ALEXNET_ERRORS',
    'CLEAN',
    'METRICS',
    'RENDITIONS',
    'cell_key',
    'corruption_errors',
    'headline_of',
    'mean_corruption_error',
    'mean_performance',
    'relative_corruption_errors',
    'severity_means',
]

CLEAN, RENDITIONS = 'clean', 'imagenet-r'
# What a table is about, in this order, where nothing else is asked for; all are better when larger.
METRICS = ('accuracy/top1', 'coco/bbox_mAP', 'coco/segm_mAP', 'mIoU')
# Top-1 errors (%) of AlexNet, means over the five severities: published with ImageNet-C, its mCE is 100 by definition.
ALEXNET_ERRORS = {
    'gaussian_noise': 88.6428,
    'shot_noise': 89.4468,
    'impulse_noise': 92.2640,
    'defocus_blur': 81.9880,
    'glass_blur': 82.6268,
    'motion_blur': 78.5948,
    'zoom_blur': 79.8360,
    'snow': 86.6816,
    'frost': 82.6572,
    'fog': 81.9324,
    'brightness': 56.4592,
    'contrast': 85.3204,
    'elastic_transform': 64.6056,
    'pixelate': 71.7840,
    'jpeg_compression': 60.6500,
}
ALEXNET_CLEAN_ERROR = 43.478  # torchvision's: 56.522 % right

Results = Mapping[str, Mapping[str, float]]


def cell_key(corruption: str, severity: int) -> str:
    """Its name in a record: ``'fog/3'``."""
    return f'{corruption}/{severity}'


def headline_of(results: Results, metric: str | None = None) -> str:
    """The metric that a table is about: ``metric``, or the first of :data:`METRICS` that there is, or the only one.

    Raises:
        ValueError: There is no such metric, or which one is not clear; the message names those that there are.
    """
    there = sorted({name for measured in results.values() for name in measured})
    for name in (metric,) if metric else METRICS:
        if name in there:
            return name
    own = [name for name in there if not name.startswith('subset/')]
    if metric is None and len(own) == 1:
        return own[0]
    raise ValueError(f'--metric must be one of {there}, got {metric!r}')


def severity_means(results: Results, metric: str, names: tuple[str, ...] = CORRUPTIONS) -> dict:
    """The metric at severity 0 (clean) to 5: means over those of ``names`` that were measured at all severities which
    occur. Severities without results are left out."""
    grid = {n: _row(results, metric, n) for n in names}
    columns = [s for s in SEVERITIES if any(s in row for row in grid.values())]
    rows = [row for row in grid.values() if columns and all(s in row for s in columns)]
    found = {s: float(np.mean([row[s] for row in rows])) for s in columns} if rows else {}
    clean = results.get(CLEAN, {}).get(metric)
    return ({0: float(clean)} if clean is not None else {}) | found


def mean_performance(results: Results, metric: str) -> tuple[float, float] | None:
    """mPC and rPC (Michaelis et al., "Benchmarking Robustness in Object Detection", 2019, equations 2 and 3).

    Returns:
        The metric's mean over 15 corruptions x 5 severities, in its unit, and that over its clean value (0 to 1; NaN
        where there is none or it is 0). None where a cell has not been measured.
    """
    rows = [_row(results, metric, name) for name in CORRUPTIONS]
    if any(len(row) < len(SEVERITIES) for row in rows):
        return None
    mean = float(np.mean([value for row in rows for value in row.values()]))
    clean = results.get(CLEAN, {}).get(metric) or np.nan
    return mean, mean / clean


def corruption_errors(results: Results, metric: str = METRICS[0]) -> dict[str, float]:
    """CE in % (Hendrycks & Dietterich 2019, section 4.2): top-1 errors summed over severities, over AlexNet's.

    For ImageNet's classes alone. Corruptions of which a severity is missing are left out.
    """
    errors = _mean_errors(results, metric)
    return {name: 100 * error / ALEXNET_ERRORS[name] for name, error in errors.items()}


def relative_corruption_errors(results: Results, metric: str = METRICS[0]) -> dict[str, float]:
    """Relative CE in %: how much the error grows over the clean one, over how much AlexNet's grows."""
    clean = results.get(CLEAN, {}).get(metric)
    if clean is None:
        return {}
    errors = _mean_errors(results, metric)
    return {
        name: 100 * (error - (100 - clean)) / (ALEXNET_ERRORS[name] - ALEXNET_CLEAN_ERROR)
        for name, error in errors.items()
    }


def mean_corruption_error(errors: Mapping[str, float]) -> float | None:
    """mCE, or relative mCE: the mean of all 15; None where one is missing."""
    if any(name not in errors for name in CORRUPTIONS):
        return None
    return float(np.mean([errors[name] for name in CORRUPTIONS]))


def _mean_errors(results: Results, metric: str) -> dict[str, float]:
    rows = {name: _row(results, metric, name) for name in CORRUPTIONS}
    return {
        name: 100 - float(np.mean(list(row.values())))
        for name, row in rows.items()
        if len(row) == len(SEVERITIES)
    }


def _row(results: Results, metric: str, corruption: str) -> dict[int, float]:
    """The metric by severity, of those that have been measured."""
    cells = {s: results.get(cell_key(corruption, s), {}).get(metric) for s in SEVERITIES}
    return {s: float(value) for s, value in cells.items() if value is not None}
