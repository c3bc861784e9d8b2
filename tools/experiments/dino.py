"""Train DINO (no labels) with a micro ViT with DTN on small images, and classify them by nearest neighbours.

``mmlape experiment dino`` trains ``dino_vit-micro-dtn_1xb64_digit-images`` with each seed, and compares the nearest
neighbours of the trained teacher with those of the same network before training. Everything it writes is in
``work_dirs/experiment_dino`` by default; seeds with a record are skipped. See
configs/dino/README.md.
"""

import argparse
import sys
from pathlib import Path

from mmlape.cli.experiments import run
from mmlape.shipped import output_folder

LEAST_EPOCHS = 4  # three are the warm-up


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog='mmlape experiment dino', description=__doc__.splitlines()[0]
    )
    parser.add_argument('--seeds', type=int, default=3, help='number of runs (%(default)s)')
    parser.add_argument('--epochs', type=int, help="of each run; default: the config's")
    default = output_folder() / 'work_dirs/experiment_dino'
    parser.add_argument('--work-dir', type=Path, default=default)
    parser.add_argument(
        '--write-docs',
        action='store_true',
        help='update figures and pictures in docs/ of this clone',
    )
    options = parser.parse_args(arguments)
    for name, least in (('seeds', 1), ('epochs', LEAST_EPOCHS)):
        value = getattr(options, name)
        if value is not None and value < least:
            parser.error(f'--{name} must be at least {least}, got {value}')
    return options


def main(arguments: list[str] | None = None) -> int:
    return run('mmlape.research.experiments.dino', parse_arguments(arguments))


if __name__ == '__main__':
    sys.exit(main())
