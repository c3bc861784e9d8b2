"""Estimate the GPU memory of a training before it is started.

    mmlape estimate CONFIG [--batch 2] [--size HEIGHT WIDTH] [--amp] [--checkpointing]

Counted on the CPU, in about a minute, without data and weights; see `mmlape docs training`.
"""

import argparse

from mmlape import cli
from mmlape.cli.arguments import CONFIG, ConfigOptions, Parser, at_least
from mmlape.shipped import read_config

GPUS = (12, 16, 24, 40, 80)  # GB
RESERVE = 1.0  # GB: CUDA's context, libraries' workspaces, the allocator's gaps


def parse_arguments() -> argparse.Namespace:
    parser = Parser(
        'estimate', __doc__.splitlines()[0], 'my_config.py', 'my_config.py --batch 4 --amp'
    )
    parser.add_argument(
        'config',
        type=CONFIG,
        help='a file, or the name of a config that comes with mmlape',
    )
    parser.add_argument('--batch', type=at_least(1), help="images per GPU (default: the config's)")
    parser.add_argument(
        '--size', '--imgsz', nargs=2, type=at_least(1), metavar=('HEIGHT', 'WIDTH'),
        help="of the padded images (default: the config's crop, padding or scale, else 800 1344)",
    )  # fmt: skip
    parser.add_argument('--amp', action='store_true', help='with mixed precision')
    parser.add_argument(
        '--checkpointing', action='store_true', help='with model.backbone.with_cp=True'
    )
    parser.add_argument(
        '--cfg-options', nargs='+', action=ConfigOptions, metavar='KEY=VALUE',
        help='override parts of the config: a.b=1',
    )  # fmt: skip
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    print(described(estimate(options), options))


def estimate(options: argparse.Namespace):
    """The parts of a step's memory."""
    from mmlape.research.analysis import measure_step_memory

    cfg = read_config(options.config)
    cfg = cli.merge_overrides(cfg, options.cfg_options)
    for part in ('model', 'train_dataloader', 'optim_wrapper'):
        if cfg.get(part) is None:
            raise ValueError(f'{options.config} has no {part}: it trains nothing')
    if options.checkpointing:
        cfg.model.backbone.with_cp = True
    size = tuple(options.size) if options.size else None
    return measure_step_memory(cfg, options.batch, size, options.amp)


def described(found, options: argparse.Namespace) -> str:
    """The parts in GB, how many images fit on which GPU, and what to do where the batch does not."""
    height, width = found.image_size
    images = f'{found.batch_size} image{"s" * (found.batch_size > 1)} of {height} x {width}'
    lines = [f'{images}, {"mixed precision" if options.amp else "float32"}']
    for name in ('parameters', 'gradients', 'optimizer', 'activations', 'total'):
        lines.append(f'  {name:12} {getattr(found, name) / 1e9:7.2f} GB')
    fixed = (found.total - found.activations) / 1e9 + RESERVE
    each = found.activations / found.batch_size / 1e9
    fitting = {gpu: max(0, int((gpu - fixed) / each)) for gpu in GPUS}
    counts = ', '.join(f'{gpu} GB: {count}' for gpu, count in fitting.items())
    lines.append(f'images per GPU, {RESERVE:.0f} GB left for CUDA: {counts}')
    lacking = [gpu for gpu, count in fitting.items() if count < found.batch_size]
    if lacking:
        ways = [f'--{name}' for name in ('amp', 'checkpointing') if not getattr(options, name)]
        ways += ['fewer images with optim_wrapper.accumulative_counts'] * (found.batch_size > 1)
        lines.append(f'for {lacking[-1]} GB and less: {", ".join(ways) or "smaller images"}')
    return '\n'.join(lines)


if __name__ == '__main__':
    cli.run_program(main)
