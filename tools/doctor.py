"""Check the environment for training: what works, what does not, and how to fix it.

    mmlape doctor [CONFIG] [--work-dir FOLDER] [--json]

Checks Python, PyTorch, the OpenMMLab packages, MMCV's compiled operators, GPUs and disk; with CONFIG (a file, or the
name of one that comes with mmlape) also at its model, data and weights. Exits with 1 if there is an error. See
`mmlape docs install`.
"""

import contextlib
import json
import sys

from mmlape import cli
from mmlape.cli.arguments import CONFIG, NEW_FOLDER, Parser
from mmlape.doctor import examine, exit_code, table


def parse_arguments():
    parser = Parser('doctor', 'Check the environment for training.', '', 'fits/cells/fit.py')
    parser.add_argument(
        'config',
        type=CONFIG,
        nargs='?',
        help='a file, or the name of a config that comes with mmlape',
    )
    parser.add_argument('--work-dir', type=NEW_FOLDER, help='the work folder of the training')
    parser.add_argument('--json', action='store_true', help='for programs')
    return parser.parse_args()


def main():
    options = parse_arguments()
    if sys.stderr.isatty():
        print('Checking: up to half a minute ...', file=sys.stderr)
    # Discard what packages print when they are imported.
    with contextlib.redirect_stdout(sys.stderr):
        checks = examine(options.config, options.work_dir)
    if options.json:
        content = dict(ok=not exit_code(checks), checks=[check._asdict() for check in checks])
        sys.stdout.write(f'{json.dumps(content, indent=2)}\n')
    else:
        sys.stdout.write(table(checks))
    sys.exit(exit_code(checks))


if __name__ == '__main__':
    cli.run_program(main)
