"""The demo from beginning to end: data, both tasks, table."""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import torch

from mmlape.datasets import build_digit_scenes
from mmlape.version import __version__
from mmlape.whole_files import write_whole

from .console import Console, clock, output_to
from .tasks import TASKS, TaskRun

DATA_STEP = 'Digit scenes: building'
DATA_SECONDS = 12
QUICK_DATA = dict(num_train=16, num_val=6)
QUICK_ITERATIONS = 6
QUICK_SECONDS = 6  # of every step


def run_demo(options: argparse.Namespace) -> None:
    """Do what of the demo is not done yet; see tools/demo.py for the options."""
    started = time.monotonic()
    tasks = [TASKS[key] for key in options.task]
    steps = {DATA_STEP: DATA_SECONDS} | {k: v for task in tasks for k, v in task.steps.items()}
    console = Console(dict.fromkeys(steps, QUICK_SECONDS) if options.quick else steps)
    log_file = options.work_dir / 'demo.log'
    console.say(
        f'Everything is written to {shown(options.work_dir)}, details to {log_file.name}. '
        'Ctrl-C stops; the same command continues.'
    )
    try:
        with output_to(log_file):
            data_id = build_data(options, console)
            results = {}
            for task in tasks:
                run = TaskRun(
                    task,
                    options.config_root,
                    options.work_dir / task.key,
                    options.data_root,
                    data_id,
                    QUICK_ITERATIONS if options.quick else None,
                    console,
                )
                results[task.key] = run.run()
    except KeyboardInterrupt:
        raise
    except BaseException:
        console.say(f'This went wrong; what was written before is in {shown(log_file)}:')
        raise
    report(options, results, time.monotonic() - started, console)


def build_data(options: argparse.Namespace, console: Console) -> str:
    """Build the digit scenes where they are not there yet; return what tells them from others."""
    console.begin(DATA_STEP)
    root = build_digit_scenes(options.data_root, **(QUICK_DATA if options.quick else {}))
    marker = json.loads((root / 'digit_scenes.json').read_text())
    sizes = marker['options']
    console.end(
        f'{sizes["num_train"]} training and {sizes["num_val"]} validation images', typical=False
    )
    return marker['fingerprint']


def report(
    options: argparse.Namespace, results: dict[str, dict], seconds: float, console: Console
) -> None:
    """Write the table as JSON and Markdown, and show it."""
    machine = {
        'device': torch.cuda.get_device_name() if torch.cuda.is_available() else 'CPU',
        'processor': platform.processor() or platform.machine(),
        'threads': torch.get_num_threads(),
        'cpus': os.cpu_count(),
        'torch': torch.__version__,
        'mmlape': __version__,
    }
    document = {'machine': machine, 'quick': options.quick, 'tasks': results}
    text = json.dumps(document, indent=2) + '\n'
    write_whole(options.work_dir / 'results.json', text.encode())
    table = markdown_table(results)
    write_whole(options.work_dir / 'results.md', f'# Demo results\n\n{table}\n'.encode())
    console.say()
    console.say(table)
    console.say()
    if options.quick:
        console.say('A quick run: the figures mean nothing but that everything works.')
    for result in results.values():
        console.say(f'Picture: {shown(options.work_dir / result["picture"])}')
    console.say(f'Table:   {shown(options.work_dir / "results.md")} (and results.json)')
    console.say(f'This call took {clock(seconds)}.')


def markdown_table(results: dict[str, dict]) -> str:
    """Untrained beside trained, one row per metric, columns aligned for the screen."""
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
    """A path as short as it can be written from here."""
    relative = os.path.relpath(path)
    return str(path) if relative.startswith('..') else relative
