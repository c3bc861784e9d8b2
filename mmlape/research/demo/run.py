"""The whole demo: data, the models in parallel, table."""

import argparse
import contextlib
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

from mmlape.atomic import atomic_write
from mmlape.cpu.wait_policy import set_wait_policy
from mmlape.research.datasets import build_digit_scenes
from mmlape.version import __version__

from .catalogue import TASKS, Call, Job
from .console import Console, Screen, clock, output_to
from .workers import cores, run_jobs

DATA_STEP = 'Digit scenes: building'
DATA_SECONDS = 12
QUICK_DATA = dict(num_train=16, num_val=6)
QUICK_ITERATIONS = 6
QUICK_SECONDS = 6  # duration of every step


class ModelError(RuntimeError):
    """The reason and the log file."""


def run_demo(options: argparse.Namespace) -> None:
    """Run the unfinished steps of the demo; see tools/demo.py for the options."""
    started = time.monotonic()
    screen = Screen()
    consoles = {key: _console(key, options.quick, screen) for key in options.task}
    screen.say(
        f'Everything is written to {shown(options.work_dir)}, details to its *.log. '
        'Ctrl-C stops; the same command continues.'
    )
    data_id = build_data(options, consoles)
    results = train_models(options, data_id, consoles)
    report(options, results, time.monotonic() - started, screen)


def train_models(
    options: argparse.Namespace, data_id: str, consoles: dict[str, Console]
) -> dict[str, dict]:
    """Run the steps of all models in parallel and return their results.

    Each has a process and its share of the cores, because small networks gain little from a second thread.

    Raises:
        ModelError: One failed.
    """
    available = cores()
    workers = min(len(consoles), available)
    jobs = [
        Job(
            key,
            options.config_root,
            options.work_dir,
            options.data_root,
            data_id,
            QUICK_ITERATIONS if options.quick else None,
            None if 'OMP_NUM_THREADS' in os.environ else available // workers,
        )
        for key in consoles
    ]
    results = {}
    next(iter(consoles.values())).say('  Loading PyTorch and OpenMMLab ...')
    with contextlib.closing(run_jobs(run_job, jobs, workers)) as reports:
        for said in reports:
            job = jobs[said.job]
            if said.kind == 'part':
                method, args, named = said.value
                getattr(consoles[job.key], method)(*args, **named)
            elif said.kind == 'result':
                results[job.key] = said.value
            else:
                raise ModelError(
                    f'{TASKS[job.key].title} failed; what was written before is in {shown(job.log_file)}:\n{said.value}'
                )
    return {key: results[key] for key in consoles}


def run_job(job: Job, tell: Callable[[Call], None]) -> dict:
    """Run the steps of a model in its own process, the only one that loads PyTorch and OpenMMLab."""
    set_wait_policy()
    from .tasks import run_task

    return run_task(job, tell)


def _console(key: str, quick: bool, screen: Screen) -> Console:
    steps = {DATA_STEP: DATA_SECONDS} | TASKS[key].steps
    return Console(dict.fromkeys(steps, QUICK_SECONDS) if quick else steps, screen)


def build_data(options: argparse.Namespace, consoles: dict[str, Console]) -> str:
    """Build the digit scenes if they do not exist; return their fingerprint."""
    first, *others = consoles.values()
    first.begin(DATA_STEP)
    with output_to(options.work_dir / 'data.log'):
        root = build_digit_scenes(options.data_root, **(QUICK_DATA if options.quick else {}))
    marker = json.loads((root / 'digit_scenes.json').read_text())
    sizes = marker['options']
    first.end(
        f'{sizes["num_train"]} training and {sizes["num_val"]} validation images', typical=False
    )
    for console in others:
        del console.expected[DATA_STEP]
    return marker['fingerprint']


def report(
    options: argparse.Namespace, results: dict[str, dict], seconds: float, screen: Screen
) -> None:
    """Write the table as JSON and Markdown, and show it."""
    machine = {
        'processor': platform.processor() or platform.machine(),
        'cpus': os.cpu_count(),
        'mmlape': __version__,
    }
    document = {'machine': machine, 'quick': options.quick, 'tasks': results}
    text = json.dumps(document, indent=2) + '\n'
    atomic_write(options.work_dir / 'results.json', text.encode())
    table = markdown_table(results)
    atomic_write(options.work_dir / 'results.md', f'# Demo results\n\n{table}\n'.encode())
    screen.say()
    screen.say(table)
    screen.say()
    if options.quick:
        screen.say('A quick run: the figures mean nothing but that everything works.')
    for result in results.values():
        screen.say(f'Picture: {shown(options.work_dir / result["picture"])}')
    screen.say(f'Table:   {shown(options.work_dir / "results.md")} (and results.json)')
    screen.say(f'This call took {clock(seconds)}.')


def markdown_table(results: dict[str, dict]) -> str:
    """Untrained and trained results, one row per metric, columns aligned for the screen."""
    rows = [('model', 'parameters', 'metric', 'untrained', 'trained', 'training time')]
    for key, result in results.items():
        for metric, trained in result['trained'].items():
            rows.append(
                (
                    TASKS[key].title,
                    f'{result["parameters"] / 1e6:.2f} M',
                    metric,
                    f'{result["untrained"][metric]:.3f}',
                    f'{trained:.3f}',
                    f'{clock(result["training_seconds"])} ({result["iterations"]} iterations)',
                )
            )
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ['| ' + ' | '.join(c.ljust(w) for c, w in zip(row, widths)) + ' |' for row in rows]
    lines.insert(1, '|' + '|'.join('-' * (width + 2) for width in widths) + '|')
    return '\n'.join(lines)


def shown(path: Path) -> str:
    """The shortest form of a path, relative to the current folder if possible."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith('..') else relative
