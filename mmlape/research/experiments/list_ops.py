"""The whole experiment on norms and ListOps: data, runs, table."""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import torch
from mmengine.config import Config, ConfigDict

from mmlape.atomic import atomic_write
from mmlape.research.datasets import build_list_ops
from mmlape.research.datasets.list_ops import HEAD
from mmlape.research.demo.console import output_to

from .position import run_remaining, useful_cores, write_results
from .records import Job, Records, Run, settings_of
from .table import markdown_table, score_of
from .training import train

CONFIG = 'configs/listops/listops-short_transformer-micro.py'
PAGE, FIGURES = 'configs/listops/README.md', 'benchmarks/records/experiment_list_ops.json'
NORMS = {
    'LN': dict(type='mmlape.LN', eps=1e-6),
    'BN': dict(type='mmlape.TokenBN'),
    'IN': dict(type='mmlape.TokenIN'),
    'GN': dict(type='mmlape.TokenGN', num_groups='heads'),
    'ScaleNorm': dict(type='mmlape.ScaleNorm'),
    'DTN': dict(type='mmlape.DTN'),
}
DATA = dict(num_train=8000, num_val=1000, num_test=1000, length=(10, 200))
# Expected seconds of a run, until the first ones are measured.
RUN_SECONDS = 30
METRIC = 'accuracy'
KEPT = ('variant', 'seed', METRIC, 'iterations', 'parameters', 'seconds', 'device')


def run_experiment(options: argparse.Namespace, clone: Path) -> int:
    """Run what is not finished; see tools/experiments/list_ops.py for the options. Returns the exit code."""
    unknown = [key for key in options.only or () if key not in NORMS]
    if unknown:
        print(f'error: --only {unknown[0]}: expected one of {", ".join(NORMS)}')
        return 2
    records = Records(options.work_dir / 'records')
    with output_to(options.work_dir / 'experiment.log'):
        data_root = build_list_ops(options.data_root, **DATA)
        data = json.loads((data_root / 'list_ops.json').read_text())['fingerprint']
        jobs = [
            _job(options, clone / CONFIG, data, norm, seed)
            # Seed by seed, so that an unfinished table has all norms.
            for seed in range(options.seeds)
            for norm in NORMS
            if norm in (options.only or NORMS)
        ]
    if not options.table:
        run_remaining(
            jobs, records, options.workers or useful_cores(), run_job, METRIC, RUN_SECONDS
        )
    found = [records.get(job.run) for job in jobs]
    results = {
        'chance': chance(data_root),
        'runs': [{key: record[key] for key in KEPT} for record in found if record],
    }
    table = markdown(results)
    atomic_write(options.work_dir / 'results.md', table.encode())
    print(f'\n{table}')
    if options.write_docs:
        write_results(clone / PAGE, clone / FIGURES, results, markdown)
    return 0


def run_job(job: Job, report: Any) -> dict[str, Any]:
    """One run in its own process, which writes the record, so that it survives the command."""
    torch.set_num_threads(1)
    measured = train(_config(job), job.run.name, report, {METRIC: 'accuracy/top1'})
    Records(job.work_dir / 'records').put(job.run, measured)
    return measured


def chance(data_root: Path) -> dict[str, float]:
    """Validation accuracy of always predicting the most frequent result of the training set, and of the most frequent
    result for the first operator."""
    train_lines, val_lines = (
        [line.split('\t') for line in path.read_text(encoding='utf-8').splitlines() if line != HEAD]
        for path in (data_root / 'annotations' / f'basic_{split}.tsv' for split in ('train', 'val'))
    )
    counts: dict[str, Counter] = defaultdict(Counter)
    for source, target in train_lines:
        for known in ('', source.split()[0]):
            counts[known][target] += 1
    best = {known: counter.most_common(1)[0][0] for known, counter in counts.items()}
    right = [
        (target == best[''], target == best.get(source.split()[0], best['']))
        for source, target in val_lines
    ]
    always, by_operator = (sum(column) / len(right) for column in zip(*right))
    return {'always': always, 'first_operator': by_operator}


def markdown(results: dict[str, Any]) -> str:
    """The table of accuracies, and a line about the runs."""
    runs = results['runs']
    rows = [
        ['chance: always the most frequent result', f'{results["chance"]["always"]:.3f}', ''],
        ['the first operator known', f'{results["chance"]["first_operator"]:.3f}', ''],
    ]
    for norm in NORMS:
        seconds = [run['seconds'] for run in runs if run['variant'] == norm]
        mean = f'{sum(seconds) / len(seconds):.0f}' if seconds else '-'
        rows.append([norm, score_of(runs, norm, METRIC), mean])
    lines = markdown_table(['norm', 'accuracy', 'seconds of a run'], rows)
    counts = {sum(run['variant'] == norm for run in runs) for norm in NORMS}
    seeds = ' to '.join(map(str, sorted({min(counts), max(counts)})))
    devices = ', '.join(sorted({run['device'] for run in runs}))
    iterations = ', '.join(str(number) for number in sorted({run['iterations'] for run in runs}))
    said = f'Seeds of each norm: {seeds}. {len(runs)} runs of {iterations} iterations on {devices}.'
    return '\n'.join([*lines, '', said if runs else 'No runs yet.']) + '\n'


def _config(job: Job) -> Config:
    """The shipped config with a norm."""
    cfg = Config.fromfile(job.config)
    cfg.model.backbone.norm_cfg = ConfigDict(NORMS[job.run.variant])
    cfg.randomness = dict(seed=job.run.seed)
    cfg.work_dir = str(job.work_dir / 'runs' / job.run.name)
    for loader in ('train_dataloader', 'val_dataloader', 'test_dataloader'):
        cfg[loader].dataset.data_root = str(job.data_root)
    if job.iterations is not None:
        cfg.train_cfg.max_iters = cfg.train_cfg.val_interval = job.iterations
    return cfg


def _job(options: argparse.Namespace, config: Path, data: str, norm: str, seed: int) -> Job:
    job = Job(Run(norm, seed, ''), config, options.data_root, options.work_dir, options.iterations)
    settings = settings_of(_config(job).to_dict(), data)
    return job._replace(run=Run(norm, seed, settings))
