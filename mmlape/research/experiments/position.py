"""The whole position experiment: data, runs, table."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mmlape.atomic import atomic_write
from mmlape.research.datasets import build_digit_cells
from mmlape.research.demo.console import Console, clock, output_to
from mmlape.research.demo.workers import cores, run_jobs

from .chance import pixel_counts, without_position
from .records import Job, Records, Run, settings_of
from .table import markdown, replace_table
from .training import train
from .variants import VARIANTS

CONFIG = 'configs/experiments/segmenter_vit-micro_mask_digit-cells.py'
PAGE = 'docs/evidence.md'
FIGURES = 'benchmarks/records/experiment_position.json'
STEP = 'Training'
# Expected seconds of a run, until the first ones are measured.
RUN_SECONDS = 35
MAX_WORKERS = 4
KEPT = (
    'variant',
    'seed',
    'mIoU',
    'mAcc',
    'aAcc',
    'iterations',
    'position_parameters',
    'seconds',
    'device',
)


def run_experiment(options: argparse.Namespace, clone: Path) -> int:
    """Run what is not finished; see tools/experiments/position.py for the options. Returns the exit code."""
    variants = _selected_variants(options.only)
    if variants is None:
        return 2
    records = Records(options.work_dir / 'records')
    with output_to(options.work_dir / 'experiment.log'):
        data_root = build_digit_cells(options.data_root)
        data = json.loads((data_root / 'digit_cells.json').read_text())['fingerprint']
        jobs = [
            _job(options, clone / CONFIG, data, variant, seed)
            # Seed by seed, so that an unfinished table has all variants.
            for seed in range(options.seeds)
            for variant in variants
        ]
    if not options.table:
        run_remaining(
            jobs, records, options.workers or useful_cores(), run_job, 'mIoU', RUN_SECONDS
        )
    found = [records.get(job.run) for job in jobs]
    results = {
        'chance': without_position(pixel_counts(data_root, 'val')),
        'runs': [{key: record[key] for key in KEPT} for record in found if record],
    }
    table = markdown(results)
    atomic_write(options.work_dir / 'results.md', table.encode())
    print(f'\n{table}')
    if options.write_docs:
        write_results(clone / PAGE, clone / FIGURES, results, markdown)
    return 0


def write_results(
    page: Path,
    figures: Path,
    results: dict[str, Any],
    markdown: Callable[[dict[str, Any]], str],
) -> None:
    """Update the table in the page and the figures in the JSON file; results that were not run stay."""
    done = {run['variant'] for run in results['runs']}
    kept = [run for run in json.loads(figures.read_text())['runs'] if run['variant'] not in done]
    results = {**results, 'runs': kept + results['runs']}
    table = markdown(results)
    text = replace_table(page.read_text(encoding='utf-8'), table)
    atomic_write(page, text.encode())
    atomic_write(figures, one_run_per_line(results).encode())


def one_run_per_line(results: dict[str, Any]) -> str:
    """The text of a file of results."""
    runs = ',\n  '.join(json.dumps(run) for run in results['runs'])
    return f'{{"chance": {json.dumps(results["chance"])},\n "runs": [\n  {runs}\n]}}\n'


def run_job(job: Job, report: Any) -> dict[str, Any]:
    """One run in its own process, which writes the record, so that it survives the command."""
    # One thread each: parallel runs use the cores better than threads, and results do not depend on the number
    # of cores.
    torch.set_num_threads(1)
    cfg = _config(job)
    measured = train(cfg, job.run.name, report)
    Records(job.work_dir / 'records').put(job.run, measured)
    return measured


def _config(job: Job) -> Any:
    work_dir = job.work_dir / 'runs' / job.run.name
    return VARIANTS[job.run.variant].config(
        job.config, job.run.seed, job.data_root, work_dir, job.iterations
    )


def _job(options: argparse.Namespace, config: Path, data: str, variant: str, seed: int) -> Job:
    job = Job(
        Run(variant, seed, ''), config, options.data_root, options.work_dir, options.iterations
    )
    settings = settings_of(_config(job).to_dict(), data)
    return job._replace(run=Run(variant, seed, settings))


def run_remaining(
    jobs: list[Any],
    records: Records,
    workers: int,
    do: Callable[[Any, Any], dict[str, Any]],
    metric: str,
    seconds: float,
) -> None:
    """Run the jobs without a record.

    Args:
        jobs: With a ``run`` each.
        records: The finished ones.
        workers: Runs at a time.
        do: Called with a job and its report function; returns the results.
        metric: The result to print, 0 to 1.
        seconds: Expected per run, until the first ones are measured.

    Raises:
        RuntimeError: A run failed.
    """
    left = [job for job in jobs if records.get(job.run) is None]
    if not left:
        print(f'All {len(jobs)} runs are done.')
        return
    workers = min(workers, len(left))
    console = Console({STEP: seconds * len(left) / workers})
    console.say(
        f'{len(left)} of {len(jobs)} runs are to be done, {workers} at a time. '
        'Ctrl-C stops; the same command continues.'
    )
    console.begin(STEP)
    parts = dict.fromkeys(range(len(left)), 0.0)
    with contextlib.closing(run_jobs(do, left, workers)) as reports:
        for report in reports:
            run = left[report.job].run
            if report.kind == 'error':
                raise RuntimeError(f'{run.name} failed:\n{report.value}')
            parts[report.job] = report.value if report.kind == 'part' else 1.0
            if report.kind == 'result':
                console.say(
                    f'  {run.variant}, seed {run.seed}: {metric} {report.value[metric]:.3f} '
                    f'[{clock(report.value["seconds"])}]'
                )
            finished = sum(part == 1 for part in parts.values())
            console.progress(sum(parts.values()) / len(left), f'{finished} of {len(left)} runs')
    console.end(f'{len(left)} runs')


def _selected_variants(only: list[str] | None) -> list[str] | None:
    """Keys of the variants to run; prints an error and returns None if one does not exist."""
    unknown = [key for key in only or () if key not in VARIANTS]
    if unknown:
        print(f'error: --only {unknown[0]}: expected one of {", ".join(VARIANTS)}')
        return None
    return [key for key in VARIANTS if only is None or key in only]


def useful_cores() -> int:
    """Number of cores for this process, at most as many as are useful."""
    return min(MAX_WORKERS, cores())
