"""Measure how robust a model is: its metric under the 15 corruptions of ImageNet-C, at five severities each.

    mmlape robustness CONFIG CHECKPOINT [--corruptions NAME ...] [--severities N ...] [--seed N] [--rgb]
        [--imagenet-c FOLDER] [--imagenet-r FOLDER] [--images N] [--metric NAME] [--work-dir FOLDER]
        [--cfg-options KEY=VALUE ...] [--launcher none|pytorch|slurm|mpi]

CONFIG is a file or the name of a shipped config, for a classifier, a detector or a segmentor; or timm/MODEL. Every
result is saved in WORK_DIR/robustness.json at once; the same command resumes. WORK_DIR/robustness.md and
robustness.png show the results. See `mmlape docs robustness`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import mmlape
from mmlape import cli
from mmlape.apps.inference.progress import clock
from mmlape.atomic import atomic_write
from mmlape.cli.arguments import (
    CHECKPOINT,
    CONFIG,
    FOLDER,
    SEED,
    Parser,
    add_common_options,
    at_least,
)
from mmlape.research import robustness as robust
from mmlape.research.demo.console import output_to

TIMM = 'timm/'
SETS = {'all': robust.CORRUPTIONS, **robust.GROUPS, 'extra': robust.EXTRA}


def config(text):
    return text if text.startswith(TIMM) and text != TIMM else CONFIG(text)


def parse_arguments():
    parser = Parser(
        'robustness', 'Measure how robust a model is.', 'my_config.py last.pth --images 500',
        'timm/lape_deit_tiny_patch16_224 last.pth --data-root data/imagenet',
    )  # fmt: skip
    add_common_options(parser, config)
    parser.add_argument('checkpoint', type=CHECKPOINT, help='a file or an address')
    parser.add_argument(
        '--corruptions', nargs='+', default=['all'], metavar='NAME',
        choices=[*SETS, *robust.CORRUPTIONS, *robust.EXTRA],
        help=f'{", ".join(SETS)} or single ones (all: the 15 of the benchmark, default)',
    )  # fmt: skip
    parser.add_argument(
        '--severities', nargs='+', type=int, default=list(robust.SEVERITIES),
        choices=robust.SEVERITIES, help='default: 1 2 3 4 5',
    )  # fmt: skip
    parser.add_argument(
        '--seed', type=SEED, default=0, help='random seed of the corruptions (default 0)'
    )
    parser.add_argument(
        '--rgb', action='store_true',
        help='images of the data set are RGB; default: BGR, as MMCV reads files',
    )  # fmt: skip
    parser.add_argument(
        '--imagenet-c', type=FOLDER, metavar='FOLDER',
        help="read the published ImageNet-C instead of corrupting the config's test images",
    )  # fmt: skip
    parser.add_argument(
        '--imagenet-r', type=FOLDER, metavar='FOLDER', help='measure ImageNet-R in FOLDER as well'
    )
    parser.add_argument(
        '--images', type=at_least(1), metavar='N', help='test on the first N images only'
    )
    parser.add_argument('--metric', help='metric of the tables; default: top-1, box AP or mIoU')
    return parser.parse_args()


def prepare(options):
    """The config, and the test sets by name: clean, corrupted and, if asked for, ImageNet-R."""
    of_timm = options.config.startswith(TIMM)
    made = robust.timm_config(options.config.removeprefix(TIMM)) if of_timm else None
    cfg = cli.config_of(options, made)
    cfg.load_from, cfg.resume = options.checkpoint, False
    mmlape.training.check_data_is_there(cfg, ('test',))
    if options.images is not None:
        cli.first_images(cfg, options.images)
    names = [each for name in options.corruptions for each in SETS.get(name, (name,))]
    order = 'rgb' if options.rgb else 'bgr'
    cells = robust.cells_of(
        cfg, names, options.severities, options.imagenet_c, options.imagenet_r,
        seed=options.seed, channel_order=order,
    )  # fmt: skip
    return cfg, cells


def record_of(options, cfg):
    """The record in the work dir, with existing results of this model."""
    source = 'on the fly' if options.imagenet_c is None else str(options.imagenet_c.resolve())
    further = dict(seed=options.seed, rgb=options.rgb, images=source)
    identity = robust.identity_of(cfg, options.checkpoint, **further)
    about = dict(name=Path(cfg.work_dir).name, imagenet=_is_imagenet(cfg))
    return robust.Record(Path(cfg.work_dir, 'robustness.json'), identity, about)


def _is_imagenet(cfg) -> bool:
    """Whether the test data have ImageNet-1k's classes, as AlexNet's errors do."""
    kind = str(cfg.test_dataloader.dataset.get('type')).rpartition('.')[2]
    return cfg.get('default_scope') == 'mmpretrain' and kind in ('ImageNet', 'SynsetFolder')


class Screen:
    """Prints a line per finished test set; OpenMMLab's output goes to a file."""

    def __init__(self, metric: str | None) -> None:
        self.metric = metric
        self.stream = sys.stdout

    def __call__(self, report: robust.Report) -> None:
        from mmlape.apps.report.names import names_of

        renditions = report.cell == robust.RENDITIONS
        metric = 'subset/top1' if renditions else self.metric
        metric = robust.headline_of({report.cell: report.measured}, metric)
        name = names_of([metric])[metric]
        left = f'{report.left} left, about {clock(report.seconds_left)}' if report.left else 'done'
        line = f'  {report.cell:<22} {name} {report.measured[metric]:<9.4g} {left}'
        print(line, file=self.stream, flush=True)


def show(record, metric: str | None) -> None:
    """The table on the screen, and both files."""
    from mmlape.apps.report import save_figure

    content = robust.read_record(record.path)
    table = robust.describe(content, metric)
    atomic_write(record.path.with_suffix('.md'), table.encode())
    save_figure(robust.draw({content['name']: [content]}, metric), record.path.with_suffix('.png'))
    print(f'\n{table}\n{record.path}, .md and .png', flush=True)


def main():
    options = parse_arguments()
    from mmengine.dist import is_main_process

    with cli.stop_with_message():
        cfg, cells = prepare(options)
    cli.continue_with(cli.command_line('robustness'))
    with cli.stop_with_message(), cli.joined(cfg):
        record = cli.main_process_says(lambda: record_of(options, cfg))
        if is_main_process():
            there = sum(cell.test_set in record.results for cell in cells)
            done = f', {there} of them done before' if there else ''
            print(f'{len(cells)} test sets{done}. Ctrl-C stops; the same command resumes.')
        screen = Screen(options.metric)
        with cli.weights_only(), output_to(Path(cfg.work_dir, 'robustness.log')):
            robust.measure(cfg, cells, record, screen)
        if is_main_process():
            show(record, options.metric)


if __name__ == '__main__':
    cli.run_program(main, logs=True)
