"""Train a detector or segmentor on a folder of your own images.

    mmlape fit DATA [--model NAME] [--task detect|instance|segment] [--epochs N] [--size S] [--batch B] [--val 0.2]
        [--out DIR] [--weights default|none|FILE|DIR] [--lr LR] [--augment none|light|strong] [--negatives] [--ema]
        [--patience N] [--full|--lora RANK|--frozen [--views N]] [--train-ann FILE] [--val-ann FILE]
        [--workers N] [--seed N] [--score S] [--dry-run]
    mmlape fit --list

Writes OUT/fit.py, a short config for you to change (`mmlape train OUT/fit.py` trains it), OUT/resolved.py, which
MMDetection's and MMSegmentation's own tools take too, and after the training curves and predictions.
"""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import fields
from pathlib import Path

from mmlape import cli
from mmlape.apps.fit.data import FORMATS, TASKS, find_data, one_of
from mmlape.apps.fit.models import find_model, known_model, listing
from mmlape.apps.fit.options import FitOptions
from mmlape.apps.inference.names import with_package
from mmlape.checkpoints import formats
from mmlape.cli.arguments import (
    FOLDER,
    LOGGERS,
    NEW_FOLDER,
    RATE,
    RATE_BELOW_ONE,
    Parser,
    checked,
    new_folder,
)
from mmlape.preemption import listen


def parse_arguments():
    parser = Parser(
        'fit', 'Train a model on a folder of your own images.', 'data/cells',
        'data/cells --model micro-adapter --size 320 --epochs 12',
    )  # fmt: skip
    parser.add_argument('data', type=FOLDER, nargs='?', help=f'the folder: {one_of(FORMATS)}')
    parser.add_argument('--list', action='store_true', help='show the models')
    parser.add_argument(
        '--model',
        type=checked(known_model),
        metavar='NAME',
        help='a model of --list; default: by the task',
    )
    parser.add_argument('--task', choices=TASKS, help='default: what the data are for')
    parser.add_argument('--out', type=NEW_FOLDER, help='default: fits/FOLDER')
    parser.add_argument(
        '--dry-run',
        action='store_true',
        help='write the configs and a picture of the data, train nothing',
    )
    add_data_options(parser.add_argument_group('data'))
    add_training_options(parser.add_argument_group('training'))
    options = parser.parse_args()
    if (options.data is None) != options.list:
        parser.error('name the folder of your data, or give --list')
    with cli.usage():
        if options.model and options.task:
            find_model(options.model, options.task)
        if options.out is None and options.data:
            options.out = new_folder(f'fits/{options.data.resolve().name}')
        options.how = FitOptions(**{f.name: getattr(options, f.name) for f in fields(FitOptions)})
    return options


def add_data_options(group):
    group.add_argument(
        '--val', type=RATE_BELOW_ONE, default=0.2,
        help='share of the images for validation where the data have no such part (%(default)s); 0: none',
    )  # fmt: skip
    group.add_argument('--train-ann', metavar='FILE', help='COCO file of the training images')
    group.add_argument('--val-ann', metavar='FILE', help='COCO file of the validation images')
    group.add_argument(
        '--classes', default='', help='names of the classes of label maps, separated by commas'
    )
    group.add_argument('--negatives', action='store_true', help='train on images without a box too')
    group.add_argument(
        '--augment', choices=('none', 'light', 'strong'), default='light',
        help='random sizes and flips; strong: more of both, and colours (%(default)s)',
    )  # fmt: skip
    group.add_argument(
        '--size',
        '--imgsz',
        type=int,
        help="side of training images in pixels; default: the model's",
    )
    group.add_argument(
        '--workers', type=int, default=2, help='processes that load images (%(default)s)'
    )
    group.add_argument(
        '--score', '--conf', '--score-thr', type=RATE,
        help="of boxes in pictures (that of the best F1 in the model's validation)",
    )  # fmt: skip


def weights(text):
    """Check what ``--weights`` names, without a look into the file."""
    source, colon, file = text.partition(':')
    if text in ('default', 'none') or '://' in text:
        return text
    if text in with_package():
        return str(with_package()[text])
    if colon and source not in formats.FORMATS:
        raise ValueError(f'{text!r}: the source must be of {", ".join(sorted(formats.FORMATS))}')
    if not os.path.exists(os.path.expanduser(file or source)):
        raise ValueError(f'there is no file {file or source!r}; --weights none: random weights')
    return text


def add_training_options(group):
    group.add_argument('--epochs', type=int, default=24, help='default: %(default)s')
    group.add_argument('--batch', type=int, default=2, help='images per step (%(default)s)')
    group.add_argument('--lr', type=float, help="learning rate of AdamW; default: the model's")
    group.add_argument(
        '--weights', type=checked(weights), default='default',
        help="what the network starts from: default (the model's published weights), none, a file "
        'of the same network, SOURCE:FILE, or a whole model: a checkpoint, a work dir, or nuclei',
    )  # fmt: skip
    how = group.add_mutually_exclusive_group()
    how.add_argument('--full', action='store_true', help='train the whole model (the default)')
    how.add_argument(
        '--lora', type=int, metavar='RANK', help='train low-rank updates of the backbone'
    )
    how.add_argument('--frozen', action='store_true', help='freeze the backbone')
    group.add_argument(
        '--views', type=int, metavar='N',
        help='with --frozen: cache the features of N random views of each image',
    )  # fmt: skip
    group.add_argument('--ema', action='store_true', help='average the weights over the steps')
    group.add_argument('--patience', type=int, help='stop after N validations without a better one')
    group.add_argument('--seed', type=int, default=0, help='default: %(default)s')
    group.add_argument(
        '--log', type=LOGGERS, metavar='tensorboard,wandb,mlflow', help='log curves there too'
    )


def held(out):
    """Say what a folder holds already, and the command that goes on with it."""
    if (out / 'report.html').exists():
        return f'{out} holds a trained model already: ' + cli.command_line(
            'predict', [str(out / 'training'), 'IMAGES']
        )
    begun = any(out.glob('training/*.pth'))
    again = cli.command_line('train', [str(out / 'fit.py'), *['--resume'] * begun])
    if begun:
        return f'{out} holds a training already: {again} continues it'
    return f'{out} holds a config already: {again} trains it'


def read(options):
    """Find out what the folder holds."""
    if (options.out / 'fit.py').exists():
        raise ValueError(f'{held(options.out)}; another --out, or removing the folder, begins anew')
    names = [name.strip() for name in options.classes.split(',') if name.strip()]
    return find_data(
        options.data,
        options.out,
        options.task,
        options.val,
        options.seed,
        options.train_ann,
        options.val_ann,
        names,
    )


def prepare(options, data):
    """Write the configs; returns the resolved config."""
    from mmlape.apps.fit import config_text
    from mmlape.apps.fit.channels import loader_of
    from mmlape.apps.fit.files import check_files, write_files
    from mmlape.apps.fit.model_changes import check_weights_are_there
    from mmlape.apps.fit.own_weights import own_checkpoint, start_from
    from mmlape.atomic import atomic_write
    from mmlape.config_text import read_config_text

    how, out = options.how, options.out
    text = config_text(data, find_model(options.model, data.task), how, out, loader_of(data))
    cfg = read_config_text(text)
    files = dict(data.files)
    if cfg.get('load_from'):
        files[cfg.load_from], told = start_from(own_checkpoint(how.weights), cfg, data.classes)
        data.notes.append(told)
    check_files(files)
    check_weights_are_there(cfg)
    written = [Path(path) for path in files if not Path(path).exists()]
    write_files(files)
    try:
        check_data(cfg)
    except (ValueError, KeyboardInterrupt):
        for path in written:  # so that the same command works once the data are mended
            path.unlink()
        made = {each for path in written for each in path.parents if each.is_relative_to(out)}
        for folder in sorted(made, reverse=True):
            if not any(folder.iterdir()):
                folder.rmdir()
        raise
    atomic_write(out / 'fit.py', text.encode())
    cfg.dump(out / 'resolved.py')
    return cfg


def check_data(cfg):
    """Refuse wrong data before anything is trained, as the training does."""
    from mmengine.registry import init_default_scope

    from mmlape.training import CheckDataHook

    init_default_scope(cfg.default_scope)
    CheckDataHook().check(cfg, ['train', 'val'])


def draw_data(options, cfg):
    """Draw training images as the network sees them; a training does it before its first step."""
    from mmlape.apps.report.batch import BATCH, draw_batch

    try:
        print(f'the training data as the network sees them: {draw_batch(cfg, options.out / BATCH)}')
    except Exception as error:  # as in a training
        print(f'note: no picture of the training data: {error!r}')


def show_scores(scores, validated):
    """Print the best figures; upstream has none where a validation has found no box."""
    for name, value in scores.items():
        print(f'  {name:<32} {value:g}')
    if validated and not scores:
        print('note: no validation has found anything, so there are no scores: train longer')


def report(options, data, best):
    """Draw predictions, and print the best figures."""
    from mmlape.apps import inference
    from mmlape.apps.fit import compare_with_truth
    from mmlape.apps.report import best_scores, for_people, read_curves

    work_dir, out = options.out / 'training', options.out
    model = inference.load(work_dir)
    if options.score is None and (note := model.score_note()):
        print(note)
    pictures = compare_with_truth(model, data, out / 'pictures', score=options.score)
    show_scores(for_people(best_scores(read_curves(work_dir), best)), data.val is not None)
    print(f'report: {out}/report.html; curves: {out}/curves.png, {out}/curves.csv')
    images = f'{len(pictures)} image{"s" * (len(pictures) != 1)}'
    images += '' if data.val else ' of the training'
    print(f'{images}, truth left and prediction right: {out}/pictures')
    print(f'predict: mmlape predict {shlex.quote(str(work_dir))} IMAGES')


def main():
    options = parse_arguments()
    if options.list:
        print(listing())
        return 0
    with cli.usage():
        data = read(options)
        if options.score is not None and data.task == 'segment':
            raise ValueError('--score is for boxes, and the data are label maps')
    cfg = prepare(options, data)
    parts = f'{data.train.count} + {data.val.count if data.val else 0} images'
    classes = f'{len(data.classes)} class{"es" * (len(data.classes) != 1)}'
    print(f'{data.format}, {parts}, {classes}: {", ".join(data.classes)}')
    for note in data.notes:
        print(f'note: {note}')
    print(f'config: {options.out}/fit.py (for other tools: {options.out}/resolved.py)', flush=True)
    cli.continue_with(cli.command_line('train', [str(options.out / 'fit.py'), '--resume']))
    if options.dry_run:
        draw_data(options, cfg)
        return 0
    train = [sys.executable, str(Path(__file__).with_name('train.py')), str(options.out / 'fit.py')]
    train += ['--bar'] * sys.stdout.isatty()
    train += ['--log', ','.join(options.log)] if options.log else []
    listen()  # it must not end before the training, which saves at SLURM's signals
    if code := cli.run_child(train):
        return code
    with cli.weights_only():
        report(options, data, cfg.default_hooks.checkpoint.save_best)
    return 0


if __name__ == '__main__':
    cli.run_program(main)
