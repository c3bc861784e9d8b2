"""Measurements of one model, in a JSON file from which a stopped run continues, and the papers' figures made of them:
CE, mCE and relative mCE, mPC and rPC."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mmlape.atomic import atomic_write, sha256_of

from . import CORRUPTIONS, SEVERITIES

if TYPE_CHECKING:
    from mmengine.config import Config

CLEAN, RENDITIONS = 'clean', 'imagenet-r'
# Default metric of a table: the first of these that was measured; all are better when larger.
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
    """Return the name of a cell in a record: ``'fog/3'``."""
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
    grid = grid_of(results, metric, names)
    columns = np.flatnonzero(np.isfinite(grid).any(axis=0))
    whole = grid[np.isfinite(grid[:, columns]).all(axis=1)]
    clean = results.get(CLEAN, {}).get(metric)
    found = {} if clean is None else {0: float(clean)}
    if len(whole):
        found |= {SEVERITIES[c]: float(whole[:, c].mean()) for c in columns}
    return found


def mean_performance(results: Results, metric: str) -> tuple[float, float] | None:
    """mPC and rPC (Michaelis et al., "Benchmarking Robustness in Object Detection", 2019, equations 2 and 3).

    Returns:
        The metric's mean over 15 corruptions x 5 severities, in its unit, and that over its clean value (0 to 1; NaN
        where there is none or it is 0). None where a cell has not been measured.
    """
    mean = float(grid_of(results, metric).mean())
    clean = results.get(CLEAN, {}).get(metric) or np.nan
    return None if np.isnan(mean) else (mean, mean / clean)


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
    errors = 100 - grid_of(results, metric).mean(axis=1)
    return {name: float(error) for name, error in zip(CORRUPTIONS, errors) if np.isfinite(error)}


def grid_of(results: Results, metric: str, names: Sequence[str] = CORRUPTIONS) -> np.ndarray:
    """The metric by corruption and severity, ``(names, 5)``; NaN where it has not been measured."""
    cells = [[results.get(cell_key(name, s), {}).get(metric) for s in SEVERITIES] for name in names]
    return np.array(cells, dtype=float)


_KIND = 'mmlape robustness'
# Entries of a config on which a result depends. It does not depend on the device or the number of processes.
_DECIDING = ('model', 'test_evaluator', 'test_cfg')


def identity_of(cfg: Config, checkpoint: str, **further: Any) -> dict[str, Any]:
    """Return the identity of a record: results of anything else must not be mixed with it.

    Args:
        cfg: The config.
        checkpoint: A file, of which the content counts, or an address.
        further: What else decides, by names that the user will understand.
    """
    config = cfg.to_dict()
    deciding = [config.get(name) for name in _DECIDING] + [config['test_dataloader']['dataset']]
    # MMPretrain's, which the runner gives the model.
    if (preprocessor := config.get('data_preprocessor')) is not None:
        deciding.append(preprocessor)
    text = json.dumps(deciding, sort_keys=True, default=str)
    path = Path(checkpoint)
    digest = sha256_of(path) if path.is_file() else checkpoint
    return {
        'config': hashlib.sha256(text.encode()).hexdigest()[:16],
        'checkpoint': digest[:16] if path.is_file() else digest,
        **further,
    }


class Record:
    """The results of one model, and the file that holds them.

    Args:
        path: The file. What it holds is gone on from.
        identity: What the results are of (:func:`identity_of`).
        about: What tables say of it: ``name``, ``imagenet``.

    Raises:
        ValueError: The file is of another config, checkpoint or seed, or no such record.
    """

    def __init__(self, path: Path, identity: dict[str, Any], about: dict[str, Any]) -> None:
        self.path, self.identity, self.about = path, identity, about
        self.results: dict[str, dict[str, float]] = {}
        if path.exists():
            content = read_record(path)
            there = content['identity']
            other = [key for key in identity if identity[key] != there.get(key)]
            if other:
                raise ValueError(
                    f'{path} holds results of another {other[0]} ({there.get(other[0])}, now '
                    f'{identity[other[0]]}): name another --work-dir, or remove the file'
                )
            self.results = content['results']

    def put(self, key: str, measured: dict[str, float]) -> None:
        """Keep what was measured; it is on the disk when this returns."""
        if self.path.exists():  # another process may have added results
            self.results = read_record(self.path)['results'] | self.results
        self.results[key] = measured
        content = dict(kind=_KIND, identity=self.identity, **self.about, results=self.results)
        atomic_write(self.path, (json.dumps(content, indent=1) + '\n').encode())


def read_record(path: Path) -> dict[str, Any]:
    """A record's content: ``name``, ``imagenet``, ``identity`` and ``results``.

    Raises:
        ValueError: There is no such file, or it is not a record.
    """
    try:
        content = json.loads(path.read_text(encoding='utf-8'))
    except FileNotFoundError:
        raise ValueError(f'there is no record {path}') from None
    except ValueError:
        content = None
    if not isinstance(content, dict) or content.get('kind') != _KIND:
        raise ValueError(f'{path} is not a record of `mmlape robustness`')
    return content
