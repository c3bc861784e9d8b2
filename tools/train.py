"""Train the model of a config: one process, several GPUs or machines, or a SLURM cluster (`mmlape docs training`).

    mmlape train CONFIG [--work-dir FOLDER] [--amp | --amp-dtype bf16] [--resume [CHECKPOINT]]
        [--auto-scale-lr] [--seed N] [--log tensorboard,wandb,mlflow]
        [--allow-partial] [--cfg-options KEY=VALUE ...]
        [--gpus N] [--nodes N] [--slurm PARTITION] [--max-restarts N] | [--launcher none|pytorch|slurm|mpi]

CONFIG is a file, or the name of a config that comes with mmlape; it may be for any OpenMMLab toolbox that is installed.
"""

import argparse
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import mmlape
from mmlape import cli
from mmlape.cli.arguments import AMP_DTYPES, LOGGERS, RESUME, SEED, Parser, add_common_options
from mmlape.cli.launch import add_launch_options, launch
from mmlape.cpu.wait_policy import set_wait_policy
from mmlape.preemption import listen


def parse_arguments():
    parser = Parser(
        'train', 'Train the model of a config.', 'my_config.py --resume',
        'my_config.py --work-dir runs/a --amp-dtype bf16 --cfg-options train_dataloader.batch_size=4',
    )  # fmt: skip
    add_common_options(parser)
    parser.add_argument('--amp', action='store_true', help='mixed precision, float16 by default')
    parser.add_argument(
        '--amp-dtype', choices=list(AMP_DTYPES), help='mixed precision in this type; implies --amp'
    )
    parser.add_argument(
        '--resume', type=RESUME, nargs='?', const='auto', metavar='CHECKPOINT',
        help='resume from this checkpoint, or from the last complete one in the work dir '
        '(from the start if there is none)',
    )  # fmt: skip
    parser.add_argument(
        '--auto-scale-lr', action='store_true',
        help="scale the learning rate with the batch size, from the config's base_batch_size",
    )  # fmt: skip
    parser.add_argument(
        '--log', type=LOGGERS, default=[], metavar='tensorboard,wandb,mlflow',
        help='log curves there too; report.html and curves.csv are always written',
    )  # fmt: skip
    parser.add_argument('--seed', type=SEED, help="instead of the config's randomness.seed")
    parser.add_argument('--bar', action='store_true', help=argparse.SUPPRESS)  # of `mmlape fit`
    add_launch_options(parser)
    return parser.parse_args()


def prepare(options):
    """The config with all options applied."""
    cfg = cli.config_of(options)
    if options.work_dir is None:
        check_place(Path(options.config), cfg.work_dir)
    if options.amp or options.amp_dtype:
        cli.enable_amp(cfg, options.amp_dtype or 'fp16')
    if options.auto_scale_lr:
        cli.enable_lr_scaling(cfg)
    if options.seed is not None:
        cfg.randomness = dict(cfg.get('randomness') or {}, seed=options.seed)
    if options.log:
        cli.log_to(cfg, options.log)
    cli.add_report(cfg)
    mmlape.training.check_config(cfg)
    mmlape.training.check_data_is_there(cfg, ('train', 'val'))
    return cfg


def check_place(config, work_dir):
    """Refuse to train elsewhere than beside a `fit.py` that was moved or copied with its training."""
    here = config.parent / 'training'
    if config.name == 'fit.py' and here.is_dir() and here.resolve() != Path(work_dir).resolve():
        raise ValueError(
            f'{config} trains in {work_dir}, where it was written; --work-dir {here} goes on beside it'
        )


def train(cfg, resume, bar=False):
    """Train; releases the runner, so that processes do not wait for it at exit."""
    with cli.stop_with_message():
        first_weights, notes = cli.start_run(cfg, resume)
    with cli.weights_only():
        with cli.stop_with_message():
            runner = cli.build_runner(cfg, first_weights)
        cli.optimize_on_cpu(runner)
        with cli.stop_with_message():
            cli.log_notes(runner, notes)
        training = mmlape.training
        errors = (training.DataError, training.UnsavedError, FloatingPointError)
        with cli.stop_with_message(*errors), cli.show_progress(runner, bar):
            runner.train()


def continuation(options):
    """How to continue this training after Ctrl-C."""
    if options.launcher not in (None, 'none') or 'RANK' in os.environ:
        return 'the same command with --resume'
    ours = ['--bar', '--resume', f'--resume={options.resume}']
    ours += [options.resume] if options.resume else []
    given = [each for each in sys.argv[1:] if each not in ours]
    return cli.command_line('train', [*given, '--resume'])


def main():
    options = parse_arguments()
    launch(options, 'train')
    listen()  # before imports that take time
    set_wait_policy()
    cli.continue_with(continuation(options))
    with ExitStack() as stack:
        with cli.stop_with_message():
            cfg = prepare(options)
            stack.enter_context(cli.joined(cfg))
        train(cfg, options.resume, options.bar)


if __name__ == '__main__':
    cli.run_program(main, logs=True)
