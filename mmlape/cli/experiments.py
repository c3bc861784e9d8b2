"""Command line of the programs of experiments."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from mmlape.shipped import output_folder, shipped_folder

SEEDS = 3


def parse_arguments(
    description: str, name: str, data: str, arguments: list[str] | None = None
) -> argparse.Namespace:
    """The options of an experiment of this name, with data in a folder of that name."""
    parser = argparse.ArgumentParser(
        prog=f'mmlape {name.replace("_", " ", 1)}', description=description.splitlines()[0]
    )
    parser.add_argument(
        '--seeds', type=int, default=SEEDS, help='runs of each variant (%(default)s)'
    )
    parser.add_argument(
        '--only', metavar='VARIANT', action='append', help='only this one (may be repeated)'
    )
    parser.add_argument(
        '--workers', type=int, help='runs at a time; default: one for each core, at most 4'
    )
    parser.add_argument('--iterations', type=int, help="training iterations; default: the config's")
    parser.add_argument('--work-dir', type=Path, default=output_folder() / 'work_dirs' / name)
    parser.add_argument('--data-root', type=Path, default=output_folder() / 'data' / data)
    parser.add_argument(
        '--table', action='store_true', help='run nothing, show the current results'
    )
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help='update the table and its figures in docs/ of this clone',
    )
    options = parser.parse_args(arguments)
    for option in ('seeds', 'workers', 'iterations'):
        value = getattr(options, option)
        if value is not None and value < 1:
            parser.error(f'--{option} must be at least 1, got {value}')
    return options


def run(module: str, options: argparse.Namespace) -> int:
    """Run the experiment of a module; returns the exit code."""
    try:
        print('Loading PyTorch and OpenMMLab ...', flush=True)
        # Imported here, so that Ctrl-C is also handled during these seconds.
        return import_module(module).run_experiment(options, shipped_folder('tools').parent)
    except KeyboardInterrupt:
        print('\nStopped. Run the same command again to resume.')
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        print(f'\nerror: {error}', file=sys.stderr)
        return 1
