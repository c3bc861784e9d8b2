"""Evaluate a checkpoint on the test data of a config: one process, several GPUs (torchrun), or a SLURM cluster.

    python tools/test.py CONFIG CHECKPOINT [--work-dir FOLDER] [--out FILE.pkl] [--show-dir FOLDER] [--show] [--tta]
        [--allow-partial] [--cfg-options KEY=VALUE ...] [--launcher none|pytorch|slurm|mpi]

CONFIG is a file, or the name of a config that comes with mmlape; it may be for any OpenMMLab toolbox that is installed.
"""

import argparse

import launch_parts.waiting  # noqa: F401  (before PyTorch)
from mmengine.registry import RUNNERS

from mmlape.engine import check_data_is_there
from mmlape.launch import (
    add_common_options,
    add_metric,
    config_of,
    existing_checkpoint,
    joined,
    keep_predictions,
    show_predictions,
    stop_with_message,
    use_tta,
    weights_only,
)


def parse_arguments():
    parser = argparse.ArgumentParser(description='Evaluate a checkpoint.')
    add_common_options(parser)
    parser.add_argument('checkpoint', help='a file or an address')
    parser.add_argument(
        '--out', help='keep the predictions: a .pkl, or a folder of label maps for MMSegmentation'
    )
    parser.add_argument('--show', action='store_true', help='show predictions on the screen')
    parser.add_argument(
        '--show-dir',
        help='draw predictions into this folder (for MMDetection: in WORK_DIR/<time>)',
    )
    parser.add_argument('--wait-time', type=float, default=2, help='seconds per image of --show')
    parser.add_argument('--tta', action='store_true', help='test-time augmentation')
    return parser.parse_args()


def prepare(options):
    """The config with everything that the options change, and a metric to add."""
    cfg = config_of(options)
    cfg.load_from, cfg.resume = existing_checkpoint(options.checkpoint), False
    check_data_is_there(cfg, ('test',))
    if options.show or options.show_dir:
        show_predictions(cfg, options.show, options.show_dir, options.wait_time)
    if options.tta:
        use_tta(cfg)
    return cfg, keep_predictions(cfg, options.out) if options.out else None


def test(cfg, metric):
    """Test; nothing of the runner is left behind for the processes to wait for when they part."""
    with weights_only():
        runner = RUNNERS.build(cfg)
        if metric is not None:
            add_metric(runner, metric)
        runner.test()


def main():
    options = parse_arguments()
    with stop_with_message():
        cfg, metric = prepare(options)
    with joined(cfg):
        test(cfg, metric)


if __name__ == '__main__':
    main()
