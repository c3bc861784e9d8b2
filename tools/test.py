"""Evaluate a checkpoint on the test data of a config: one process, several GPUs or machines, or SLURM.

    mmlape test CONFIG CHECKPOINT [--work-dir FOLDER] [--out FILE.pkl] [--show-dir FOLDER] [--show] [--tta]
        [--images N] [--allow-partial] [--cfg-options KEY=VALUE ...]
        [--gpus N] [--nodes N] [--slurm PARTITION] | [--launcher none|pytorch|slurm|mpi]

CONFIG is a file, or the name of a config that comes with mmlape; it may be for any OpenMMLab toolbox that is installed.
"""

from contextlib import ExitStack

import mmlape
from mmlape import cli
from mmlape.cli.arguments import (
    CHECKPOINT,
    NEW_FOLDER,
    NEW_PATH,
    ZERO_OR_MORE,
    Parser,
    add_common_options,
    at_least,
)
from mmlape.cli.launch import add_launch_options, launch
from mmlape.cpu.wait_policy import set_wait_policy

# Parts of a config that a test does not read.
NOT_READ = ('train_cfg', 'train_dataloader', 'optim_wrapper', 'param_scheduler', 'strategy')


def parse_arguments():
    parser = Parser(
        'test', 'Evaluate a checkpoint.', 'my_config.py work_dirs/my_config/epoch_12.pth',
        'my_config.py last.pth --images 100 --show-dir pictures',
    )  # fmt: skip
    add_common_options(parser)
    parser.add_argument('checkpoint', type=CHECKPOINT, help='a file or an address')
    parser.add_argument(
        '--out',
        type=NEW_PATH,
        help='save the predictions: a .pkl, or a folder of label maps for MMSegmentation',
    )
    parser.add_argument('--show', action='store_true', help='show predictions on the screen')
    parser.add_argument(
        '--show-dir',
        type=NEW_FOLDER,
        help='draw predictions into this folder, beside the ground truth',
    )
    parser.add_argument(
        '--wait-time',
        type=ZERO_OR_MORE,
        default=2,
        help='seconds per image of --show; 0: until a key',
    )
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    parser.add_argument(
        '--images', type=at_least(1), metavar='N', help='test on the first N images only'
    )
    add_launch_options(parser)
    return parser.parse_args()


def prepare(options):
    """The config with all options applied, and an additional metric."""
    cfg = cli.config_of(options)
    cfg.load_from, cfg.resume = options.checkpoint, False
    # Whoever tests published weights need not mend how they were trained.
    read = {name: cfg[name] for name in cfg if name not in NOT_READ}
    mmlape.training.check_config(read)
    mmlape.training.check_data_is_there(cfg, ('test',))
    if options.images is not None:
        cli.first_images(cfg, options.images)
    if options.show or options.show_dir:
        cli.show_predictions(cfg, options.show, options.show_dir, options.wait_time)
    if options.tta:
        cli.use_tta(cfg)
    return cfg, cli.keep_predictions(cfg, str(options.out)) if options.out else None


def test(cfg, metric):
    """Test; releases the runner, so that processes do not wait for it at exit."""
    with cli.weights_only():
        with cli.stop_with_message():
            runner = cli.make_runner(cfg)
        cli.optimize_on_cpu(runner)
        cli.show_scores(runner)
        if metric is not None:
            cli.add_metric(runner, metric)
        with cli.stop_with_message(mmlape.training.DataError):
            runner.test()


def main():
    options = parse_arguments()
    launch(options, 'test')
    set_wait_policy()
    with ExitStack() as stack:
        with cli.stop_with_message():
            cfg, metric = prepare(options)
            stack.enter_context(cli.joined(cfg))
        test(cfg, metric)


if __name__ == '__main__':
    cli.run_program(main, logs=True)
