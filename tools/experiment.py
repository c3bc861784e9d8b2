"""Run an experiment: trainings of several variants with several seeds, and a table of what they give.

    mmlape experiment --list
    mmlape experiment camvid --data DATA/camvid
    mmlape experiment nuclei --data DATA/nuclei --evaluate CHECKPOINT --part test

Runs with a record are skipped; Ctrl-C stops, and the same command continues, also in the middle of a run. See
docs/evidence.md, and for `position`, `dino`, `list_ops` and `robustness` their own pages.
"""

import argparse
import sys
from pathlib import Path

from mmlape import cli
from mmlape.shipped import output_folder

OTHERS = ('position', 'dino', 'list_ops', 'robustness')  # programs in tools/experiments


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog='mmlape experiment',
        description=__doc__.splitlines()[0],
        epilog=f'Generated data: {", ".join(OTHERS)}, with options of their own (--help).',
    )
    parser.add_argument('name', nargs='?', help='of an experiment, or all; --list shows them')
    parser.add_argument('--list', action='store_true', help='the experiments on real images')
    parser.add_argument(
        '--data', type=Path, help='folder of the data set, of all sets for `all` (data/NAME, data)'
    )
    parser.add_argument('--seeds', type=int, help='runs of each variant (default: of the plan)')
    parser.add_argument(
        '--only', metavar='VARIANT', action='append', help='only this one (may be repeated)'
    )
    parser.add_argument('--workers', type=int, help='runs at a time (default: one per core)')
    work_dir, clone = output_folder() / 'work_dirs/experiment', Path(__file__).parents[1]
    records = clone / 'benchmarks/records'
    parser.add_argument('--work-dir', type=Path, default=work_dir)
    parser.add_argument(
        '--records', type=Path, default=records if records.is_dir() else work_dir,
        help='folder of the records (%(default)s)',
    )  # fmt: skip
    parser.add_argument('--table', action='store_true', help='train nothing, print the table')
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help="update the pages of this clone from the records",
    )
    parser.add_argument('--evaluate', metavar='CHECKPOINT', help='only score this checkpoint')
    parser.add_argument(
        '--part', default='val', help='of the data, for --evaluate (%(default)s; e.g. test)'
    )
    cli.add_trust(parser)
    options = parser.parse_args()
    for name in ('seeds', 'workers'):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f'--{name} must be at least 1, got {value}')
    if options.name is None and not options.list:
        parser.error('name an experiment, or give --list')
    return options


def main():
    options = parse_arguments()
    print('Loading PyTorch and OpenMMLab ...', flush=True)
    try:
        with cli.stop_with_message(ValueError, OSError, RuntimeError):
            from mmlape.research.experiments.evidence import run_experiment
            from mmlape.research.experiments.plan import EXPERIMENTS

            if options.list:
                for name, each in EXPERIMENTS.items():
                    print(f'{name:<24} {each.question} ({len(each.variants)} x {each.seeds} runs)')
                return
            names = EXPERIMENTS if options.name == 'all' else [options.name]
            for name in names:
                run_experiment(name, options)
            if options.write_docs:
                from mmlape.research.experiments.page import write_pages

                write_pages(Path(__file__).parents[1] / 'docs', options.records)
    except KeyboardInterrupt:
        print('\nStopped. The same command continues.')
        sys.exit(130)


if __name__ == '__main__':
    main()
