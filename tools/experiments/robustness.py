"""Compare the robustness of LaPE and DTN with their baselines: train small networks, test on corrupted images.

Networks of three groups, each trained with every seed, then tested under the 15 corruptions of ImageNet-C at five
severities: the demo's Segmenter with LaPE and with the default joining, the demo's RetinaNet with DTN and with
LayerNorm, and micro Segmenters on digit cells. Ctrl-C stops it; the same command resumes. All output is in
``work_dirs/experiment_robustness`` and ``data`` by default. See
docs/robustness.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from mmlape.cli.experiments import run
from mmlape.shipped import output_folder

GROUPS = ('cells', 'segmentor', 'detector')


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='mmlape experiment robustness', description=__doc__.splitlines()[0]
    )
    parser.add_argument('--seeds', type=int, default=3, help='runs of each network (%(default)s)')
    parser.add_argument(
        '--images', type=int, default=40, help='validation images of each test (%(default)s)'
    )
    parser.add_argument(
        '--iterations',
        type=int,
        help="iterations of each training; default: the config's, 200 on digit cells",
    )
    parser.add_argument(
        '--only', choices=GROUPS, action='append', help='only this group (may be repeated)'
    )
    work_dir = output_folder() / 'work_dirs/experiment_robustness'
    parser.add_argument('--work-dir', type=Path, default=work_dir)
    parser.add_argument(
        '--data-root', type=Path, default=output_folder() / 'data', help='folder of the data sets'
    )
    parser.add_argument(
        '--table', action='store_true', help='run nothing, show the current results'
    )
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help='update tables and pictures in docs/ of this clone',
    )
    options = parser.parse_args(arguments)
    for name in ('seeds', 'images', 'iterations'):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f'--{name} must be at least 1, got {value}')
    return options


def main(arguments: list[str] | None = None) -> int:
    return run('mmlape.research.experiments.robustness', parse_arguments(arguments))


if __name__ == '__main__':
    sys.exit(main())
