"""The robustness experiment: trainings, tests, and the tables of the page."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from mmengine.config import Config

import mmlape.research.robustness as robust
from mmlape.apps.report import save_figure
from mmlape.atomic import atomic_write
from mmlape.research.datasets import build_digit_cells, build_digit_scenes
from mmlape.research.demo.console import output_to
from mmlape.research.demo.state import fingerprint
from mmlape.research.demo.tasks import move_data, shorten
from mmlape.shipped import find_config

from .study import train
from .table import replace_table


class Group(NamedTuple):
    """A group of networks to compare.

    Attributes:
        config: The shipped config.
        build: Builds its data.
        iterations: Of a training; None: the config's.
        networks: Config changes by name.
    """

    config: str
    build: Callable[..., Path]
    iterations: int | None
    networks: dict[str, dict[str, Any]]


GROUPS = {
    'cells': Group(
        'experiments/segmenter_vit-micro_mask_digit-cells',
        build_digit_cells,
        200,
        {
            'LayerNorm, default': {},
            'LayerNorm, LaPE': {'model.backbone.joining.type': 'mmlape.LaPE'},
            'DTN, default': {'model.backbone.norm_cfg': dict(type='mmlape.DTN')},
        },
    ),
    'segmentor': Group(
        'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes',
        build_digit_scenes,
        None,
        {
            'Segmenter, default': {'model.backbone.vit.joining.type': 'mmlape.DefaultJoining'},
            'Segmenter, LaPE': {},
        },
    ),
    'detector': Group(
        'demo/retinanet_pvt-micro-dtn_fpn_digit-scenes',
        build_digit_scenes,
        None,
        {
            'RetinaNet, LayerNorm': {'model.backbone.norm_cfg': dict(type='mmlape.LN', eps=1e-6)},
            'RetinaNet, DTN': {},
        },
    ),
}
PAGE, FIGURES = 'docs/robustness.md', 'benchmarks/records/experiment_robustness.json'
# Results of a group: by network, a list of ``seed``, ``iterations``, ``images`` and ``results``.
Figures = Mapping[str, list[dict[str, Any]]]


def run_experiment(options: argparse.Namespace, clone: Path) -> None:
    """Run what is not finished; see tools/experiments/robustness.py for the options.

    Raises:
        ValueError: Nothing is done yet.
    """
    chosen = options.only or list(GROUPS)
    if not options.table:
        torch.set_num_threads(1)
        # Seed by seed, so that an unfinished table has all networks.
        for seed in range(options.seeds):
            for key in chosen:
                for network in GROUPS[key].networks:
                    measure(options, key, network, seed)
    found = {key: figures for key in chosen if (figures := done(options, key))}
    if not found:
        raise ValueError(f'no run is done in {options.work_dir}')
    for key, figures in found.items():
        print(f'\n{key}\n\n{table_of(figures)}')
        atomic_write(options.work_dir / f'{key}.md', table_of(figures).encode())
        save_figure(robust.draw(figures), options.work_dir / f'{key}.png')
    if options.write_docs:
        write_docs(clone, found)


def network_config(options: argparse.Namespace, key: str, network: str, seed: int) -> Config:
    """The shipped config with the changes of this network; saves the last weights, without validation."""
    group = GROUPS[key]
    cfg = Config.fromfile(find_config(group.config))
    cfg.merge_from_dict(group.networks[network])
    cfg.default_hooks.checkpoint = dict(type='mmlape.CheckpointHook', by_epoch=False)
    shorten(cfg, options.iterations or group.iterations or cfg.train_cfg.max_iters)
    cfg.default_hooks.checkpoint.interval = cfg.train_cfg.max_iters
    # So that no run goes on from weights of another config.
    name = f'{network.lower().replace(", ", "-")}_seed{seed}_{fingerprint(cfg.to_dict())[:6]}'
    cfg.work_dir = str(options.work_dir / key / name)
    move_data(cfg, data_root(options, key))
    cfg.custom_hooks = []
    cfg.val_cfg = cfg.val_dataloader = cfg.val_evaluator = None
    cfg.randomness = dict(seed=seed)
    return cfg


def data_root(options: argparse.Namespace, key: str) -> Path:
    """The data folder of a group, one per number of images, because detection evaluators count all images."""
    name = GROUPS[key].build.__name__.removeprefix('build_')
    return options.data_root / f'{name}_{options.images}'


def measure(options: argparse.Namespace, key: str, network: str, seed: int) -> None:
    """Train and test one network; completed parts are skipped."""
    cfg = network_config(options, key, network, seed)
    work_dir = Path(cfg.work_dir)
    with output_to(options.work_dir / 'data.log'):
        GROUPS[key].build(data_root(options, key), num_val=options.images)
    checkpoint = work_dir / f'iter_{cfg.train_cfg.max_iters}.pth'
    print(f'{network}, seed {seed}', flush=True)
    if not checkpoint.is_file():
        trained = train(cfg, work_dir.name, metrics={})
        print(f'  trained in {trained["seconds"]:.0f} s', flush=True)
    cfg = network_config(options, key, network, seed)
    cfg.load_from = str(checkpoint)
    chosen = dict(iterations=cfg.train_cfg.max_iters, images=options.images)
    identity = robust.identity_of(cfg, cfg.load_from, seed=0, **chosen)
    about = dict(name=network, imagenet=False)
    record = robust.Record(work_dir / 'robustness.json', identity, about)
    cells = robust.cells_of(cfg, seed=0)
    with output_to(work_dir / 'robustness.log'):
        robust.measure(cfg, cells, record, lambda report: None)
    metric = robust.headline_of(record.results)
    mean, relative = robust.mean_performance(record.results, metric)
    print(f'  mPC {mean:.3g} ({metric}), rPC {100 * relative:.1f} %', flush=True)


def done(options: argparse.Namespace, key: str) -> dict[str, list[dict[str, Any]]]:
    """The complete records of a group by network, reduced to their main metric."""
    found: dict[str, list[dict[str, Any]]] = {}
    for network in GROUPS[key].networks:
        for seed in range(options.seeds):
            cfg = network_config(options, key, network, seed)
            path = Path(cfg.work_dir, 'robustness.json')
            if not path.is_file():
                continue
            content = robust.read_record(path)
            results = content['results']
            metric = robust.headline_of(results)
            if robust.mean_performance(results, metric) is not None:
                kept = {cell: {metric: round(all_[metric], 4)} for cell, all_ in results.items()}
                # The options of the run, which this command need not name.
                run_with = {
                    name: content['identity'].get(name) for name in ('iterations', 'images')
                }
                found.setdefault(network, []).append(dict(seed=seed, **run_with, results=kept))
    return found


def table_of(figures: Figures) -> str:
    """Means and standard deviations over seeds, and a line about the runs."""
    every = [run for runs in figures.values() for run in runs]
    seeds = ', '.join(f'{len(runs)} of "{network}"' for network, runs in figures.items())
    iterations, images = (
        ' or '.join(map(str, sorted({run[name] for run in every})))
        for name in ('iterations', 'images')
    )
    said = f'Seeds: {seeds}; {iterations} iterations, {images} images.'
    return f'{robust.compare(figures)}\n{said}\n'


def summary_of(figures: Figures) -> str:
    """The first table of :func:`table_of` and its last line: what the page shows."""
    tables = table_of(figures).split('\n\n')
    return f'{tables[0]}\n\n{tables[-1]}'


def table_marks(key: str) -> tuple[str, str]:
    """The two comments around a group's table in the page."""
    return f'<!-- table of {key}: written by the command -->', f'<!-- end of the table of {key} -->'


def write_docs(clone: Path, found: Mapping[str, Figures]) -> None:
    """Update tables, pictures and figures in ``docs/``; other groups stay unchanged."""
    page, path = clone / PAGE, clone / FIGURES
    text = page.read_text(encoding='utf-8')
    for key, figures in found.items():
        text = replace_table(text, summary_of(figures), *table_marks(key))
        save_figure(robust.draw(figures), page.parent / f'images/robustness-{key}.png')
    kept = json.loads(path.read_text(encoding='utf-8')) if path.is_file() else {}
    atomic_write(path, _one_run_per_line({**kept, **found}).encode())
    atomic_write(page, text.encode())


def _one_run_per_line(found: Mapping[str, Figures]) -> str:
    groups = []
    for key in sorted(found):
        networks = [
            f'{json.dumps(network)}: [\n   ' + ',\n   '.join(map(json.dumps, runs)) + ']'
            for network, runs in found[key].items()
        ]
        groups.append(f'{json.dumps(key)}: {{\n  ' + ',\n  '.join(networks) + '}')
    return '{' + ',\n '.join(groups) + '}\n'
