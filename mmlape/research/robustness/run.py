"""Runs of a model, built once, on all test sets."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.dist import is_main_process
from mmengine.registry import LOOPS, RUNNERS
from mmengine.runner import Runner

from . import CORRUPTIONS, SEVERITIES
from .corruptions import CorruptImage
from .data import Data, clean, corrupted, published, renditions
from .scores import CLEAN, RENDITIONS, Record, cell_key


class Cell(NamedTuple):
    """A test set: its name in the record, and its data."""

    test_set: str
    data: Callable[[], Data]


class Report(NamedTuple):
    """After a cell: what was measured, how many are left, and the seconds that they will take."""

    cell: str
    measured: dict[str, float]
    left: int
    seconds_left: float


def cells_of(
    cfg: Config,
    corruptions: Sequence[str] = CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    imagenet_c: Path | None = None,
    imagenet_r: Path | None = None,
    **options: Any,
) -> list[Cell]:
    """The config's own test set, every corruption of it at every severity, and ImageNet-R.

    Args:
        cfg: The config.
        corruptions: Names; default the benchmark's 15.
        severities: Default 1 to 5.
        imagenet_c: Folder of the published ImageNet-C; default: images are corrupted on the fly.
        imagenet_r: Folder of ImageNet-R; default: left out.
        options: ``seed`` and ``channel_order`` of :class:`~mmlape.research.robustness.CorruptImage`.

    Raises:
        ValueError: A folder that is not there, or a config that the data are not for.
    """
    cells = [Cell(CLEAN, partial(clean, cfg))]
    for name in dict.fromkeys(corruptions):
        for severity in dict.fromkeys(severities):
            if imagenet_c is None:
                which = dict(options, corruption=name, severity=severity)
                CorruptImage(**which)
                data = partial(corrupted, cfg, **which)
            else:
                data = partial(published, cfg, imagenet_c, name, severity)
            cells.append(Cell(cell_key(name, severity), data))
    if imagenet_r is not None:
        cells.append(Cell(RENDITIONS, partial(renditions, cfg, imagenet_r)))
    for cell in cells:
        cell.data()  # raises for missing data before the first result
    return cells


def measure(
    cfg: Config, cells: Iterable[Cell], record: Record, report: Callable[[Report], None]
) -> None:
    """Test the model of ``cfg`` on every cell that the record does not have yet; each result is kept at once.

    Args:
        cfg: The config, with ``load_from``. Its test data decide what tables in the log are about.
        cells: The test sets.
        record: Where results go. Only the main process writes it.
        report: Called in the main process, after every cell.

    Raises:
        ValueError: The config has no test, or the model finds nothing in any clean image.
    """
    left = [cell for cell in cells if cell.test_set not in record.results]
    if not left:
        return
    runner = RUNNERS.build(cfg)
    if runner.test_loop is None:  # asked for here, so that what checks data before a run has some
        raise ValueError('the config has no test_dataloader, test_evaluator and test_cfg')
    runner.call_hook('before_run')
    runner.load_or_resume()
    started = time.monotonic()
    for done, cell in enumerate(left, 1):
        measured = _test(runner, cfg, cell.data())
        if cell.test_set == CLEAN and not measured:
            raise ValueError(
                'the model finds nothing in any clean image: there is nothing to compare'
            )
        if is_main_process():
            measured = measured or _nothing_found(record.results.get(CLEAN, {}))
            record.put(cell.test_set, measured)
            pace = (time.monotonic() - started) / done
            report(Report(cell.test_set, measured, len(left) - done, pace * (len(left) - done)))
    runner.call_hook('after_run')


def _test(runner: Runner, cfg: Config, data: Data) -> dict[str, float]:
    """Run a test loop on ``data``; return the metrics that are numbers."""
    loader, dataset = {**data.dataloader}, data.dataloader.dataset
    own = {**cfg.test_dataloader.dataset, 'pipeline': dataset.get('pipeline')}
    if 'pipeline' in dataset and dataset == own:
        # The config's data set is read once: what is corrupted on the fly differs in the pipeline alone.
        loader['dataset'] = copy.copy(runner.test_loop.dataloader.dataset)
        loader['dataset'].pipeline = Compose(dataset['pipeline'])
    # The runner keeps one loop. Others are built as it builds that one, around the same model and hooks.
    loop = LOOPS.build(
        {'type': 'TestLoop', **cfg.test_cfg},
        default_args=dict(runner=runner, dataloader=loader, evaluator=data.evaluator),
    )
    measured = loop.run()
    return {key: float(value) for key, value in measured.items() if hasattr(value, '__float__')}


def _nothing_found(clean: Mapping[str, float]) -> dict[str, float]:
    """Return precisions of 0, which MMDetection's metrics leave out where a detector finds nothing in any image."""
    return {key: min(value, 0.0) for key, value in clean.items() if 'mAP' in key}
