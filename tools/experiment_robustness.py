"""Are LaPE and DTN more robust than what they replace? Train micro Segmenters and measure them on corrupted images.

    mmlape experiment_robustness [--seeds 3] [--images 40] [--iterations 200] [--table] [--write-docs]
        [--work-dir FOLDER] [--data-root FOLDER]

Three networks, each trained with every seed on digit cells, then tested under the 15 corruptions of ImageNet-C at five
severities. It can be stopped at any time; the same command goes on. See docs/robustness.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from demo_parts.console import output_to
from experiments.table import replace_table
from experiments.training import train
from experiments.variants import VARIANTS as POSITIONS
from mmengine.config import Config

import mmlape.robustness as robust
from mmlape.analysis.panels import save_figure
from mmlape.datasets import build_digit_cells
from mmlape.launch import stop_with_message
from mmlape.shipped import find_config
from mmlape.whole_files import write_whole

ROOT = Path(__file__).resolve().parents[1]
CONFIG = 'experiments/segmenter_vit-micro_mask_digit-cells'
# Position (tools/experiments/variants.py) and norm.
VARIANTS = {
    'LayerNorm, default': ('default-learned', 'mmlape.LN'),
    'LayerNorm, LaPE': ('lape_progressive-learned', 'mmlape.LN'),
    'DTN, default': ('default-learned', 'mmlape.DTN'),
}


def parse_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--seeds', type=int, default=3, help='runs of each network (%(default)s)')
    parser.add_argument(
        '--images', type=int, default=40, help='validation images of each test (%(default)s)'
    )
    parser.add_argument(
        '--iterations', type=int, default=200, help='of each training (%(default)s)'
    )
    parser.add_argument('--work-dir', type=Path, default=Path('work_dirs/experiment_robustness'))
    parser.add_argument('--data-root', type=Path, default=Path('data/digit_cells'))
    parser.add_argument('--table', action='store_true', help='run nothing, show what is done')
    parser.add_argument(
        '--write-docs', action='store_true', help='put table and picture into docs/ of this clone'
    )
    options = parser.parse_args(arguments)
    for name in ('seeds', 'images', 'iterations'):
        value = getattr(options, name)
        if value < 1:
            parser.error(f'--{name} must be at least 1, got {value}')
    return options


def config_of(options: argparse.Namespace, variant: str, seed: int) -> Config:
    """The shipped config with this variant's backbone, which keeps its last weights."""
    position, norm = VARIANTS[variant]
    name = variant.lower().replace(', ', '-')
    cfg = POSITIONS[position].config(
        find_config(CONFIG), seed, options.data_root, options.work_dir / f'{name}_seed{seed}',
        options.iterations,
    )  # fmt: skip
    cfg.model.backbone.norm_cfg = dict(type=norm)
    cfg.test_dataloader.dataset.indices = options.images
    cfg.default_hooks.checkpoint = dict(
        type='mmlape.CheckpointHook', by_epoch=False, interval=options.iterations
    )
    return cfg


def measured(options: argparse.Namespace, variant: str, seed: int) -> None:
    """Train and test one network, as far as that has not been done."""
    cfg = config_of(options, variant, seed)
    work_dir = Path(cfg.work_dir)
    checkpoint = work_dir / f'iter_{options.iterations}.pth'
    print(f'{variant}, seed {seed}', flush=True)
    if not checkpoint.is_file():
        scores = train(cfg, work_dir.name, lambda part: None)
        print(f'  trained in {scores["seconds"]:.0f} s, mIoU {scores["mIoU"]:.3f}', flush=True)
    cfg = config_of(options, variant, seed)
    cfg.load_from = str(checkpoint)
    cells = robust.cells_of(cfg, seed=0)
    identity = robust.identity_of(cfg, cfg.load_from, seed=0)
    about = dict(name=variant, imagenet=False)
    record = robust.Record(work_dir / 'robustness.json', identity, about)
    with output_to(work_dir / 'robustness.log'):
        robust.measure(cfg, cells, record, lambda report: None)
    mean, relative = robust.mean_performance(record.results, 'mIoU')
    print(f'  mPC {mean:.1f}, rPC {100 * relative:.1f} %', flush=True)


def done(options: argparse.Namespace) -> dict[str, list[dict]]:
    """The whole records that there are, by network.

    Raises:
        ValueError: A network has none.
    """
    found: dict[str, list[dict]] = {}
    for variant in VARIANTS:
        paths = [
            Path(config_of(options, variant, seed).work_dir, 'robustness.json')
            for seed in range(options.seeds)
        ]
        records = [robust.read_record(path) for path in paths if path.is_file()]
        whole = [each for each in records if robust.mean_performance(each['results'], 'mIoU')]
        if not whole:
            raise ValueError(f'no run of "{variant}" is done in {options.work_dir}')
        found[variant] = whole
    return found


def main(arguments: list[str] | None = None) -> None:
    options = parse_arguments(arguments)
    with stop_with_message(ValueError, FileExistsError, ModuleNotFoundError):
        if not options.table:
            with output_to(options.work_dir / 'data.log'):
                build_digit_cells(options.data_root)
            # All networks with the first seed come first, so that an unfinished table misses none.
            for seed in range(options.seeds):
                for variant in VARIANTS:
                    measured(options, variant, seed)
        records = done(options)
    seeds = ', '.join(f'{len(many)} of "{name}"' for name, many in records.items())
    table = f'{robust.compare(records)}\nSeeds: {seeds}; {options.images} images.\n'
    print(f'\n{table}')
    write_whole(options.work_dir / 'results.md', table.encode())
    save_figure(robust.draw(records), options.work_dir / 'results.png')
    if options.write_docs:
        page = ROOT / 'docs/robustness.md'
        write_whole(page, replace_table(page.read_text(encoding='utf-8'), table).encode())
        save_figure(robust.draw(records), ROOT / 'docs/images/robustness.png')


if __name__ == '__main__':
    main()
