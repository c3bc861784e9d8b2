"""Run an experiment: trainings of several variants with several seeds, and a table of what they give.

    mmlape experiment --list
    mmlape experiment camvid --data DATA/camvid
    mmlape experiment nuclei --data DATA/nuclei --evaluate CHECKPOINT --part test

Runs with a record are skipped; Ctrl-C stops, and the same command continues, also in the middle of a run. See
`mmlape docs evidence`, and for `position`, `dino`, `list_ops` and `robustness` their own pages.
"""

import sys
from pathlib import Path

from mmlape import cli
from mmlape.checks import check_option, did_you_mean
from mmlape.cli.arguments import CHECKPOINT, FOLDER, NEW_FOLDER
from mmlape.cli.experiments import parser_of, run
from mmlape.cli.program import usage
from mmlape.research.experiments.plan import EXPERIMENTS
from mmlape.shipped import output_folder

RECORDS = Path(__file__).parents[1] / 'benchmarks/records'


def parse_arguments():
    parser = parser_of(
        '',
        __doc__,
        seeds=dict(default=None, help='runs of each variant (default: of the plan)'),
        workers=dict(help='runs at a time (default: one per core)'),
        data=dict(
            type=FOLDER, help='folder of the data set, of all sets for `all` (data/NAME, data)'
        ),
        records=dict(
            type=NEW_FOLDER,
            default=RECORDS if RECORDS.is_dir() else output_folder() / 'work_dirs/experiment',
            help='folder of the records (%(default)s)',
        ),
        list=dict(action='store_true', help='the experiments on real images'),
        evaluate=dict(type=CHECKPOINT, metavar='CHECKPOINT', help='only score this checkpoint'),
        part=dict(default='val', help='of the data, for --evaluate (%(default)s; e.g. test)'),
        iterations=None,
        data_root=None,
    )
    parser.add_argument('name', nargs='?', help='of an experiment, or all; --list shows them')
    parser.description += (
        ' Generated data: position, dino, list_ops, robustness, with options of their own (--help).'
    )
    cli.add_trust(parser)
    options = parser.parse_args()
    if (options.name is None) != options.list:
        parser.error('name an experiment, or give --list')
    if options.list:
        for name, each in EXPERIMENTS.items():
            print(f'{name:<24} {each.question} ({len(each.variants)} x {each.seeds} runs)')
        sys.exit()
    if options.part != 'val' and not options.evaluate:
        parser.error('--part goes with --evaluate')
    if mode := '--evaluate' if options.evaluate else '--table' if options.table else None:
        for name in ('only', 'seeds', 'workers'):
            if getattr(options, name) is not None:
                parser.error(f'--{name} is for runs, and {mode} runs nothing')
    with usage():
        if options.name != 'all' and options.name not in EXPERIMENTS:
            hint = did_you_mean(options.name, EXPERIMENTS)
            raise ValueError(f'there is no experiment {options.name!r}{hint}')
        for variant in options.only or ():
            named = EXPERIMENTS if options.name == 'all' else [options.name]
            for name in named:
                check_option('--only', variant, EXPERIMENTS[name].variants)
    return options


if __name__ == '__main__':
    run(parse_arguments)
