"""Train, evaluate and draw a LaPE ViT-Adapter Mask R-CNN and a LaPE Segmenter on generated data.

``make demo`` runs it; ``make demo MODEL=retinanet_dtn_pvt`` trains a RetinaNet on a PVT with DTN instead. Ctrl-C
stops it; the same command resumes. All output is in ``work_dirs/demo`` and ``data/digit_scenes`` of the clone (of the
current folder, where mmlape was installed from a wheel), unless other folders are named. See `mmlape docs index`.
"""

import argparse
from pathlib import Path

from mmlape import cli
from mmlape.cli.arguments import NEW_FOLDER, Parser
from mmlape.research.demo.catalogue import TASKS
from mmlape.research.demo.run import ModelError, run_demo
from mmlape.shipped import output_folder

ROOT = Path(__file__).resolve().parents[1]
MODELS = tuple(TASKS)
DEFAULT_MODELS = MODELS[:2]


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(
        'demo',
        'Train, evaluate and draw small models with the methods of this project.',
        '--quick',
        '--model retinanet_dtn_pvt --work-dir work_dirs/pvt',
    )
    parser.add_argument(
        '--model',
        '--task',
        dest='task',
        choices=MODELS,
        action='append',
        help=f'only this one (may be repeated); default: {" and ".join(DEFAULT_MODELS)}',
    )
    parser.add_argument(
        '--quick', action='store_true', help='a smoke test: a few iterations on a few images'
    )
    parser.add_argument('--work-dir', type=NEW_FOLDER, help='default: work_dirs/demo')
    parser.add_argument('--data-root', type=NEW_FOLDER, help='default: data/digit_scenes')
    options = parser.parse_args(arguments)
    suffix = '_quick' if options.quick else ''
    options.task = options.task or list(DEFAULT_MODELS)
    options.work_dir = options.work_dir or output_folder() / f'work_dirs/demo{suffix}'
    options.data_root = options.data_root or output_folder() / f'data/digit_scenes{suffix}'
    options.config_root = ROOT / 'configs/demo'
    return options


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    cli.continue_with(cli.command_line('demo'))
    with cli.stop_with_message(ModelError, FileExistsError):
        run_demo(options)


if __name__ == '__main__':
    cli.run_program(main, logs=True)
