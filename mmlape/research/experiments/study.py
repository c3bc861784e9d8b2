"""Short trainings on generated data: variants by seeds, a JSON record for each run, and a table of them."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch
from mmengine.config import Config
from mmengine.runner import Runner

import mmlape  # noqa: F401  registers our types
from mmlape.apps.inference.progress import clock
from mmlape.atomic import atomic_write
from mmlape.research.demo.console import output_to
from mmlape.research.demo.state import fingerprint
from mmlape.research.demo.tasks import shorten
from mmlape.research.demo.workers import cores, run_jobs

from .table import replace_table

MAX_WORKERS = 4


@dataclass(frozen=True)
class Study:
    """Variants to compare on generated data, and where their results go.

    Attributes:
        config: The shipped config.
        page, figures: Files of the clone, one with the table, and a JSON file with the results.
        build: Builds the data in a folder, or finds them there.
        marker: The file of the data with their fingerprint.
        variants: Names.
        change: Changes a config into that of a variant.
        metrics: Of the validation, in percent, by the names of the results; the first one is printed.
        others: Further results to keep.
        chance: Scores of predictors that know little, on the data in a folder.
        markdown: The table of results.
    """

    config: str
    page: str
    figures: str
    build: Callable[[Path], Path]
    marker: str
    variants: Collection[str]
    change: Callable[[Config, str], None]
    metrics: Mapping[str, str]
    others: tuple[str, ...]
    chance: Callable[[Path], dict[str, Any]]
    markdown: Callable[[dict[str, Any]], str]


class Run(NamedTuple):
    """A training: a variant and a seed of a study, and where things are.

    ``settings``: a fingerprint of everything else that the result depends on.
    """

    study: Study
    config: Path
    variant: str
    seed: int
    data_root: Path
    work_dir: Path
    iterations: int | None = None
    settings: str = ''

    @property
    def name(self) -> str:
        return f'{self.variant}_seed{self.seed}'

    @property
    def record(self) -> Path:
        return self.work_dir / 'records' / f'{self.name}.json'

    def make_config(self) -> Config:
        """The shipped config with the variant's changes."""
        cfg = Config.fromfile(self.config)
        self.study.change(cfg, self.variant)
        cfg.randomness = dict(seed=self.seed)
        cfg.work_dir = str(self.work_dir / 'runs' / self.name)
        for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            cfg[loader].dataset.data_root = str(self.data_root)
        if self.iterations is not None:
            shorten(cfg, self.iterations)
        return cfg

    def with_settings(self, data: str) -> Run:
        """The run with its settings, which do not depend on where it is run; ``data``: their fingerprint."""
        config = self.make_config().to_dict()
        for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
            config[loader]['dataset']['data_root'] = ''
        del config['work_dir']
        return self._replace(settings=fingerprint(config, data))


def read_record(path: Path, settings: str) -> dict[str, Any] | None:
    """The results; None if there is no file, it is damaged, or its settings differ."""
    try:
        record = json.loads(path.read_text(encoding='utf-8'))
    except (FileNotFoundError, ValueError):
        return None
    same = isinstance(record, dict) and record.get('settings') == settings
    return record if same else None


def run_study(study: Study, options: argparse.Namespace, clone: Path) -> None:
    """Run what has no record, and show the table; see mmlape/cli/experiments.py for the options.

    Raises:
        RuntimeError: If a run failed.
    """
    with output_to(options.work_dir / 'experiment.log'):
        data_root = study.build(options.data_root)
        data = json.loads((data_root / study.marker).read_text())['fingerprint']
    runs = [
        Run(
            study, clone / study.config, variant, seed,
            options.data_root, options.work_dir, options.iterations,
        ).with_settings(data)
        # Seed by seed, so that an unfinished table has all variants.
        for seed in range(options.seeds)
        for variant in study.variants
        if variant in (options.only or study.variants)
    ]  # fmt: skip
    if not options.table:
        left = [run for run in runs if read_record(run.record, run.settings) is None]
        metric = next(iter(study.metrics))
        workers = options.workers or min(MAX_WORKERS, cores())
        for run, measured in finished_jobs(do, left, len(runs), workers):
            seconds = clock(measured['seconds'])
            said = f'{run.variant}, seed {run.seed}: {metric} {measured[metric]:.3f} [{seconds}]'
            print(f'  {said}', flush=True)
    found = [record for run in runs if (record := read_record(run.record, run.settings))]
    kept = ('variant', 'seed', *study.metrics, 'iterations', *study.others, 'seconds', 'device')
    results = {
        'chance': study.chance(data_root),
        'runs': [{key: record[key] for key in kept} for record in found],
    }
    table = study.markdown(results)
    atomic_write(options.work_dir / 'results.md', table.encode())
    print(f'\n{table}')
    if options.write_docs:
        write_results(study, clone, results)


def finished_jobs(
    do: Callable[[Any, Any], dict[str, Any]], left: list[Any], total: int, workers: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Do jobs in processes; yield each one with its results when it is finished.

    Args:
        do: Called with a job and a function that reports progress, which nobody reads.
        left: The jobs, with a ``name`` each.
        total: How many there are with those that have a record.
        workers: Jobs at a time.

    Raises:
        RuntimeError: A job failed.
    """
    workers = min(workers, len(left))
    print(f'{len(left)} of {total} runs are to be done, {workers} at a time.')
    print('Ctrl-C stops; the same command continues.', flush=True)
    begin = time.monotonic()
    starts = [begin] * workers  # of each job; a later one starts when another ends
    taken = []
    with contextlib.closing(run_jobs(do, left, workers)) as reports:
        for report in reports:
            job = left[report.job]
            if report.kind == 'error':
                raise RuntimeError(f'{job.name} failed:\n{report.value}')
            yield job, report.value
            now = time.monotonic()
            taken.append(now - starts[report.job])
            starts.append(now)
            if rest := len(left) - len(taken):
                seconds = fmean(taken) * len(left) / workers - (now - begin)
                print(f'    about {clock(max(0, seconds))} for the other {rest}', flush=True)


def do(run: Run, report: Any) -> dict[str, Any]:
    """One run in its own process, which writes the record, so that it survives the command."""
    # One thread each: parallel runs use the cores better than threads, and results do not depend on the number
    # of cores.
    torch.set_num_threads(1)
    measured = train(run.make_config(), run.name, run.study.metrics)
    record = dict(variant=run.variant, seed=run.seed, settings=run.settings, **measured)
    run.record.parent.mkdir(parents=True, exist_ok=True)
    atomic_write(run.record, (json.dumps(record, indent=2, sort_keys=True) + '\n').encode())
    return measured


def train(cfg: Config, name: str, metrics: Mapping[str, str]) -> dict[str, Any]:
    """Train and validate; OpenMMLab's output goes to ``train.log`` in the config's ``work_dir``.

    Args:
        cfg: The config.
        name: The run's name, by which MMEngine caches loggers for the life of the process.
        metrics: The validation's metrics to keep, by the name to keep them under.

    Returns:
        The metrics (0 to 1), parameters, seconds, and the device.
    """
    started = time.monotonic()
    with output_to(Path(cfg.work_dir) / 'train.log'):
        cfg.experiment_name = f'{name}-{os.getpid()}-{time.monotonic_ns()}'
        runner = Runner.from_cfg(cfg)
        runner.train()
    scalars = runner.message_hub.log_scalars
    position = [
        parameter.numel()
        for key, parameter in runner.model.backbone.named_parameters()
        if re.search(r'(^|\.)position\d?\.', key)
    ]
    return {
        **{key: round(scalars[f'val/{name}'].current() / 100, 4) for key, name in metrics.items()},
        'iterations': cfg.train_cfg.max_iters,
        'parameters': sum(p.numel() for p in runner.model.parameters()),
        'position_parameters': sum(position),
        'seconds': round(time.monotonic() - started, 1),
        'device': torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU',
    }


def write_results(study: Study, clone: Path, results: dict[str, Any]) -> None:
    """Update the table in the page and the figures in the JSON file; results that were not run stay."""
    page, figures = clone / study.page, clone / study.figures
    done = {run['variant'] for run in results['runs']}
    kept = [run for run in json.loads(figures.read_text())['runs'] if run['variant'] not in done]
    results = {**results, 'runs': kept + results['runs']}
    text = replace_table(page.read_text(encoding='utf-8'), study.markdown(results))
    atomic_write(page, text.encode())
    chance, runs = json.dumps(results['chance']), one_per_line(results['runs'])
    atomic_write(figures, f'{{"chance": {chance},\n"runs": {runs}}}\n'.encode())


def one_per_line(records: list[dict[str, Any]]) -> str:
    """A JSON list with a line for each record."""
    lines = ',\n '.join(map(json.dumps, records))
    return f'[\n {lines}\n]\n'
