"""Does it matter how position joins a transformer? Train micro Segmenters on a task in which position decides.

``make experiment-position`` runs it: every embedding in every joining, three seeds each. It can be stopped at any time;
the same command goes on with the runs that are not finished. Everything it writes is in
``work_dirs/experiment_position`` and ``data/digit_cells`` of the clone, unless other folders are named. See
docs/experiment_position.md.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEEDS = 3


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
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
    parser.add_argument('--work-dir', type=Path, default=ROOT / 'work_dirs/experiment_position')
    parser.add_argument('--data-root', type=Path, default=ROOT / 'data/digit_cells')
    parser.add_argument('--table', action='store_true', help='run nothing, show what there is')
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help='put the table and its figures into docs/ of this clone',
    )
    options = parser.parse_args(arguments)
    for name in ('seeds', 'workers', 'iterations'):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f'--{name} must be at least 1, got {value}')
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    try:
        print('Loading PyTorch and OpenMMLab ...', flush=True)
        # Imported here, so that Ctrl-C is answered the same way during these seconds.
        from experiments.position import run_experiment

        return run_experiment(options, ROOT)
    except KeyboardInterrupt:
        print(
            '\nStopped. `make experiment-position` (or the same command again) does what is left.'
        )
        return 130
    except (RuntimeError, FileExistsError, ModuleNotFoundError) as error:
        print(f'\nerror: {error}', file=sys.stderr)
        return 1


if __name__ == '__main__':
    sys.exit(main())
