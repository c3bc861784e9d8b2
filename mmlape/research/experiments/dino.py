"""Trainings of the micro DINO: records, curves, and attention before and after."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.runner import Runner
from torch import Tensor

from mmlape.apps.report import line_style, save_figure
from mmlape.atomic import atomic_write
from mmlape.research.analysis import (
    attention_distances,
    class_attention,
    draw_class_attention,
    draw_distances,
    find_stages,
    load_backbone,
)
from mmlape.research.analysis.figures import TEXT, add_key, new_plots
from mmlape.research.datasets import DigitImages
from mmlape.research.demo.state import fingerprint

from .study import one_per_line, read_record
from .table import markdown_table, mean_and_deviation, replace_table

CONFIG = 'configs/dino/dino_vit-micro-dtn_1xb64_digit-images.py'
PAGE, FIGURES = 'configs/dino/README.md', 'benchmarks/records/experiment_dino.json'
CURVES = ('loss', 'teacher_entropy', 'divergence', 'k-NN accuracy (%)')
IMAGES = 64  # attention distances are means over these
PUBLISHED = ('curves', 'attention-before', 'attention-after')
_OF_THE_RUN = ('work_dir', 'experiment_name')
SHOWN = (0, 3, 5, 8)  # digits of which the class token's attention is shown


def run_experiment(options: argparse.Namespace, clone: Path) -> None:
    """Train the seeds without a record; see tools/experiments/dino.py for the options."""
    torch.set_num_threads(1)
    records = [_record(options, clone / CONFIG, seed) for seed in range(options.seeds)]
    table = markdown(records)
    print(f'\n{table}')
    curves = draw_curves(records)
    pictures = {'curves': curves} | _draw_attention(options.work_dir / 'seed0', clone / CONFIG)
    for name, figure in pictures.items():
        save_figure(figure, options.work_dir / f'dino-{name}.png')
    if options.write_docs:
        page = clone / PAGE
        atomic_write(clone / FIGURES, one_per_line(records).encode())
        text = replace_table(page.read_text(encoding='utf-8'), table)
        atomic_write(page, text.encode())
        for name in PUBLISHED:
            save_figure(pictures[name], clone / 'docs/images' / f'dino-{name}.png')


def markdown(records: list[dict[str, Any]]) -> str:
    """Accuracies of the neighbours by seed, with mean and standard deviation."""
    rows = [
        [
            str(record['seed']),
            *(f'{record[key]:.1f}' for key in ('before', 'after')),
            f'{record["processor_seconds"]:.0f}',
        ]
        for record in records
    ]
    if len(records) > 1:
        cells = [
            mean_and_deviation([record[key] for record in records], 1)
            for key in ('before', 'after')
        ]
        rows.append(['mean ± standard deviation', *cells, ''])
    head = ['seed', 'k-NN before (%)', 'k-NN after (%)', 'processor seconds']
    steps = ', '.join(sorted({f'{r["epochs"]} epochs ({r["iterations"]} steps)' for r in records}))
    return '\n'.join([*markdown_table(head, rows), '', f'{steps}, one thread of a CPU.']) + '\n'


def _record(options: argparse.Namespace, config: Path, seed: int) -> dict[str, Any]:
    path = options.work_dir / f'seed{seed}.json'
    cfg = _config(options, config, seed)
    chosen = {key: value for key, value in cfg.to_dict().items() if key not in _OF_THE_RUN}
    settings = fingerprint(chosen)
    if record := read_record(path, settings):
        return record
    start = time.process_time()
    runner = Runner.from_cfg(cfg)
    # Initialise as the training would; otherwise the test would see other weights than those it starts from.
    runner.model.init_weights()
    before = round(float(runner.test()['accuracy/top1']), 2)
    torch.save(dict(state_dict=runner.model.state_dict()), Path(cfg.work_dir, 'before.pth'))
    runner.train()
    curves = _curves(Path(runner.log_dir, 'vis_data', 'scalars.json'), before)
    record = dict(
        seed=seed,
        settings=settings,
        epochs=cfg.train_cfg.max_epochs,
        iterations=runner.iter,
        before=before,
        after=curves[CURVES[3]][-1][1],
        processor_seconds=round(time.process_time() - start, 1),
        curves=curves,
    )
    atomic_write(path, json.dumps(record).encode())
    return record


def _config(options: argparse.Namespace, config: Path, seed: int) -> Config:
    cfg = Config.fromfile(config)
    if options.epochs is not None:
        before = cfg.train_cfg.max_epochs
        cfg.train_cfg.update(max_epochs=options.epochs)
        for scheduler in cfg.param_scheduler:
            if scheduler.end == before:
                scheduler.end = options.epochs
    cfg.work_dir = str(options.work_dir / f'seed{seed}')
    cfg.experiment_name = f'{config.stem}-seed{seed}-{time.time_ns()}'
    cfg.randomness = dict(seed=seed)
    cfg.env_cfg.dist_cfg = None
    return cfg


def _curves(log: Path, before: float) -> dict[str, list[list[float]]]:
    """Pairs of step and value, by the names of :data:`CURVES`; accuracies are logged by epoch."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    trained = [line for line in lines if 'loss' in line]
    curves = {name: [[line['step'], line[name]] for line in trained] for name in CURVES[:3]}
    per_epoch = trained[-1]['step'] / trained[-1]['epoch']
    found = [[0, before]]
    for line in lines:
        if 'accuracy/top1' in line and line['step']:  # not that of the test before training
            found.append([round(line['step'] * per_epoch), line['accuracy/top1']])
    return {**curves, CURVES[3]: found}


def draw_curves(records: list[dict[str, Any]]) -> Figure:
    """A plot for each of :data:`CURVES`, a line for each seed."""
    figure, axes = new_plots(1, len(CURVES), share_y=False)
    for place, name in zip(axes[0], CURVES, strict=True):
        lines = {}
        for number, record in enumerate(records):
            points = zip(*record['curves'][name], strict=True)
            (lines[f'seed {record["seed"]}'],) = place.plot(*points, **line_style(number))
        place.set_ylabel(name.replace('_', ' '), fontsize=TEXT)
        place.set_xlabel('training step', fontsize=TEXT)
        highest = max(value for record in records for _, value in record['curves'][name])
        place.set_ylim(0, 1.1 * max(highest, 1e-6))
    add_key(figure, **lines)
    return figure


def _draw_attention(folder: Path, config: Path) -> dict[str, Figure]:
    """Draw attention distances and class attention for the first seed, before and after training."""
    batch, labels = _validation_images(config)
    shown = [batch[labels.index(digit)] for digit in SHOWN]
    last = folder / Path((folder / 'last_checkpoint').read_text()).name
    drawn = {}
    for name, checkpoint in (('before', folder / 'before.pth'), ('after', last)):
        teacher = load_backbone(config, checkpoint)
        found = attention_distances(teacher, batch, find_stages(teacher))
        drawn[f'distance-{name}'] = draw_distances(found)
        maps = [class_attention(teacher, image) for image in shown]
        drawn[f'attention-{name}'] = draw_class_attention(maps)
    return drawn


def _validation_images(config: Path) -> tuple[list[Tensor], list[int]]:
    """The first :data:`IMAGES`, as the network gets them, and their digits."""
    cfg = Config.fromfile(config)
    dataset = {**cfg.val_dataloader.dataset, 'indices': IMAGES}
    dataset['pipeline'] = [dict(type='mmpretrain.PackInputs')]
    dataset.pop('type')
    images = DigitImages(**dataset)
    mean, std = cfg.data_preprocessor.mean[0], cfg.data_preprocessor.std[0]
    batch = [(item['inputs'][None].float() - mean) / std for item in images]
    return batch, [item['data_samples'].gt_label.item() for item in images]
