"""Trainings of the micro DINO: records, curves, and how far attention looks before and after."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from demo_parts.state import write_whole
from matplotlib.figure import Figure
from mmengine.config import Config
from mmengine.runner import Runner

from mmlape.analysis import attention_distances, draw_distances, find_stages, load_backbone
from mmlape.analysis.panels import new_plots, save_figure
from mmlape.datasets import DigitImages

CONFIG = 'configs/dino/dino_vit-micro-dtn_1xb64_digit-images.py'
CURVES = ('loss', 'teacher_entropy', 'divergence', 'k-NN accuracy (%)')
IMAGES = 64  # of which attention distances are the mean


def run_experiment(options: argparse.Namespace, clone: Path) -> int:
    """Train what has no record yet; see tools/experiment_dino.py for the options. Returns the exit code."""
    torch.set_num_threads(1)
    records = [_record(options, clone / CONFIG, seed) for seed in range(options.seeds)]
    for record in records:
        print(
            f'seed {record["seed"]}: k-NN {record["before"]:.1f} % before, {record["after"]:.1f} % '
            f'after {record["epochs"]} epochs ({record["processor_seconds"]:.0f} s of processor time)'
        )
    curves = draw_curves(records)
    distances = _draw_distances(options.work_dir / 'seed0', clone / CONFIG)
    folders = [options.work_dir]
    if options.write_docs:
        folders.append(clone / 'docs' / 'images')
        write_whole(clone / 'docs' / 'experiment_dino.json', _one_per_line(records))
    for folder in folders:
        save_figure(curves, folder / 'dino-curves.png')
        for name, figure in distances.items():
            save_figure(figure, folder / f'dino-attention-{name}.png')
    return 0


def _record(options: argparse.Namespace, config: Path, seed: int) -> dict[str, Any]:
    path = options.work_dir / f'seed{seed}.json'
    cfg = _config(options, config, seed)
    epochs = cfg.train_cfg.max_epochs
    if path.is_file():
        record = json.loads(path.read_text())
        if record['epochs'] == epochs:
            return record
    start = time.process_time()
    runner = Runner.from_cfg(cfg)
    before = round(float(runner.test()['accuracy/top1']), 2)
    torch.save(dict(state_dict=runner.model.state_dict()), Path(cfg.work_dir, 'before.pth'))
    runner.train()
    curves = _curves(Path(runner.log_dir, 'vis_data', 'scalars.json'), before)
    record = dict(
        seed=seed,
        epochs=epochs,
        iterations=runner.iter,
        before=before,
        after=curves[CURVES[3]][-1][1],
        processor_seconds=round(time.process_time() - start, 1),
        curves=curves,
    )
    write_whole(path, json.dumps(record))
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
        for record in records:
            place.plot(*zip(*record['curves'][name], strict=True), linewidth=1)
        place.set_title(name, fontsize=7, pad=3)
        place.set_xlabel('step', fontsize=7)
        highest = max(value for record in records for _, value in record['curves'][name])
        place.set_ylim(0, 1.1 * max(highest, 1e-6))
    return figure


def _draw_distances(folder: Path, config: Path) -> dict[str, Figure]:
    """How far the heads look on validation images, of the first seed before and after training."""
    pipeline = [dict(type='mmpretrain.PackInputs')]
    cfg = Config.fromfile(config)
    shown = cfg.val_dataloader.dataset.photographs
    images = DigitImages('val', photographs=shown, pipeline=pipeline, indices=IMAGES)
    preprocessor = cfg.data_preprocessor
    mean, std = preprocessor.mean[0], preprocessor.std[0]
    batch = [(item['inputs'][None].float() - mean) / std for item in images]
    last = folder / Path((folder / 'last_checkpoint').read_text()).name
    drawn = {}
    for name, checkpoint in (('before', folder / 'before.pth'), ('after', last)):
        backbone = load_backbone(config, checkpoint)
        drawn[name] = draw_distances(attention_distances(backbone, batch, find_stages(backbone)))
    return drawn


def _one_per_line(records: list[dict[str, Any]]) -> str:
    return '[\n ' + ',\n '.join(map(json.dumps, records)) + '\n]\n'
