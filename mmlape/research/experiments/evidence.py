"""Experiments on real images: run what has no record, and write what was measured."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import threading
import time
from dataclasses import asdict
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np
import torch
from mmengine.config import Config
from mmengine.registry import MODELS, init_default_scope
from mmengine.runner import Runner, load_checkpoint

from mmlape.apps.fit.files import write_files
from mmlape.apps.fit.model_changes import check_weights_are_there
from mmlape.apps.inference.loading import config_inside
from mmlape.apps.inference.model import Model
from mmlape.apps.inference.progress import clock
from mmlape.apps.report import read_curves
from mmlape.atomic import atomic_write
from mmlape.checkpoints.loaders import load_with_config, safe_loading
from mmlape.checkpoints.reading import weights_only_everywhere
from mmlape.research.demo.console import output_to
from mmlape.research.demo.state import fingerprint
from mmlape.research.demo.workers import cores
from mmlape.research.robustness import CORRUPTIONS
from mmlape.training.processes import build_runner, log_notes, optimize_on_cpu, start_run

from .kinds import KINDS, with_rare_kinds
from .plan import EXPERIMENTS
from .recipes import DATA, PRETRAINING, Experiment, rescaled, run_config
from .scores import part_named, score
from .small_images import FolderData, accuracy_of
from .statistics import markdown
from .study import finished_jobs, one_per_line

CLONE = Path(__file__).resolve().parents[3]


class Job(NamedTuple):
    """A run with everything that its process needs: where the data are, where it writes, and its settings."""

    experiment: str
    variant: str
    seed: int
    root: Path
    folder: Path
    settings: str

    @property
    def name(self) -> str:
        return str(self.folder)


def run_experiment(options: argparse.Namespace, clone: Path) -> None:
    """Run what has no record of an experiment; see tools/experiment.py for the options.

    Raises:
        ValueError: If the data are not there.
        RuntimeError: If a run failed.
    """
    for name in EXPERIMENTS if options.name == 'all' else [options.name]:
        _run_one(name, options)
    if options.write_docs:
        from .page import write_pages  # which imports this module

        write_pages(clone / 'docs', options.records)


def _run_one(name: str, options: argparse.Namespace) -> None:
    experiment = EXPERIMENTS[name]
    variants = options.only or experiment.variants
    root = options.data
    if root is None or options.name == 'all':
        root = (root or Path('data')) / experiment.data
    if options.evaluate:
        evaluate(experiment, options, root.resolve())
        return
    path = options.records / f'evidence_{name}.json'
    if not options.table:
        for variant in variants:  # mistakes end here, not in a run
            cfg, _ = run_config(experiment, variant, 0, root, options.work_dir)
            check_weights_are_there(cfg)
        jobs: list[Job] = []
        # Seed by seed, so that an unfinished table has all variants.
        for seed in range(options.seeds or experiment.seeds):
            jobs += [job_of(name, variant, seed, root, options.work_dir) for variant in variants]
        _run_missing(jobs, path, options.workers or cores())
    runs = current_runs(path, experiment)
    print(f'\n{experiment.question}\n\n{markdown(experiment, runs)}')


def job_of(name: str, variant: str, seed: int, root: Path, work_dir: Path) -> Job:
    """A run; its folder is named by the settings too, so that none goes on from a checkpoint of others."""
    settings = settings_of(EXPERIMENTS[name], variant)
    folder = work_dir / name / f'{variant}_seed{seed}_{settings[:6]}'
    return Job(name, variant, seed, root.resolve(), folder.resolve(), settings)


def _start_of(job: Job) -> Job | None:
    """The run with whose weights this one starts."""
    weights = EXPERIMENTS[job.experiment].variants[job.variant].weights
    if weights is None:
        return None
    return job_of(PRETRAINING, weights, job.seed, job.root, job.folder.parents[1])


def start_from_weights(cfg: Config, job: Job) -> None:
    """Let the transformer of a run start with the weights that its variant names."""
    if start := _start_of(job):
        cfg.model.backbone.vit.init_cfg = dict(
            type='mmlape.Pretrained',
            source='mmlape',
            checkpoint=str(checkpoint_of(start)),
            prefix='backbone.',
        )


def checkpoint_of(job: Job) -> Path:
    """The last weights of a run."""
    experiment = EXPERIMENTS[job.experiment]
    recipe = experiment.variants[job.variant].recipe or experiment.recipe
    return job.folder / f'training/epoch_{recipe.options["epochs"]}.pth'


def settings_of(experiment: Experiment, variant: str) -> str:
    """A fingerprint of all that we have chosen for a run, but for its seed. Records with another one are run again."""
    chosen = experiment.variants[variant]
    weights = [settings_of(EXPERIMENTS[PRETRAINING], chosen.weights)] if chosen.weights else []
    return fingerprint(asdict(chosen.recipe or experiment.recipe), dict(chosen.changes), *weights)


def read_runs(path: Path) -> list[dict[str, Any]]:
    """The records of an experiment."""
    return json.loads(path.read_text(encoding='utf-8')) if path.is_file() else []


def current_runs(path: Path, experiment: Experiment) -> list[dict[str, Any]]:
    """Return the records of the experiment's present settings, which tables and pictures show."""
    settings = {variant: settings_of(experiment, variant) for variant in experiment.variants}
    return [run for run in read_runs(path) if run['settings'] == settings.get(run['variant'])]


def _with_shared(jobs: list[Job], path: Path) -> list[dict[str, Any]]:
    """The records of an experiment, and those of other experiments on the same data that are the same runs."""
    runs = read_runs(path)
    own = EXPERIMENTS[jobs[0].experiment]
    missing = {(job.seed, job.settings): job.variant for job in jobs}
    for run in runs:
        missing.pop((run['seed'], run['settings']), None)
    for name, other in EXPERIMENTS.items():
        if (
            name == jobs[0].experiment
            or other.data != own.data
            or not {*own.views} <= {*other.views}
        ):
            continue
        for run in read_runs(path.with_name(f'evidence_{name}.json')):
            if variant := missing.pop((run['seed'], run['settings']), None):
                runs = _entered({**run, 'variant': variant}, path)
    return runs


def _entered(new: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """The records on the disk, which another process may have changed, with a new one, which replaces one of other
    settings; they are written."""
    key = new['seed'], new['variant']
    runs = [run for run in read_runs(path) if (run['seed'], run['variant']) != key] + [new]
    runs.sort(key=lambda run: (run['seed'], run['variant']))
    atomic_write(path, one_per_line(runs).encode())
    return runs


def _run_missing(jobs: list[Job], path: Path, workers: int) -> None:
    """Run the jobs without a record, and enter each as it comes.

    Raises:
        ValueError: If weights that a job starts from are not there.
    """
    runs = _with_shared(jobs, path)
    done = {(run['variant'], run['seed'], run['settings']) for run in runs}
    left = [
        job
        for job in jobs
        if (job.variant, job.seed, job.settings) not in done
        or (job.experiment == PRETRAINING and not checkpoint_of(job).is_file())
    ]
    for start in filter(None, map(_start_of, left)):
        if not checkpoint_of(start).is_file():
            raise ValueError(
                f'there is no {checkpoint_of(start)}: run `mmlape experiment {PRETRAINING}` first, with the same '
                '--work-dir'
            )
    for job, new in finished_jobs(do, left, len(jobs), workers):
        _entered(new, path)
        measure = DATA[EXPERIMENTS[job.experiment].data].measure
        said = f'{job.variant}, seed {job.seed}: {measure} {new["metrics"][measure]:.2f}'
        print(f'  {said} [{clock(new["processor_seconds"])}]', flush=True)


def do(job: Job, report: Any) -> dict[str, Any]:
    """One run in its own process: train (or go on), then score the last weights."""
    torch.set_num_threads(1)
    commit = _commit()  # now: another may come during the run
    job.folder.mkdir(parents=True, exist_ok=True)
    with output_to(job.folder / 'run.log'):
        experiment = EXPERIMENTS[job.experiment]
        cfg, data = run_config(experiment, job.variant, job.seed, job.root, job.folder)
        write_files(data.files)
        recipe = experiment.variants[job.variant].recipe or experiment.recipe
        if times := recipe.options.get('rare_kinds'):
            cfg.train_dataloader.dataset = with_rare_kinds(cfg.train_dataloader.dataset, times)
        start_from_weights(cfg, job)
        spent = _Spent(job.folder / 'seconds.json')
        spent.start()
        cfg.experiment_name = f'{job.experiment}-{job.variant}-{job.seed}-{time.monotonic_ns()}'
        try:
            _train(cfg)
        finally:
            spent.over.set()
            spent.join()
            seconds = spent.write()
        checkpoint = checkpoint_of(job)
        found = _scored(checkpoint, cfg, data, data.val)
        for view in experiment.views:
            _add_view(found, view, checkpoint, cfg, data)
        saved_megabytes = _saved_megabytes(checkpoint, cfg)
    return dict(
        variant=job.variant,
        seed=job.seed,
        settings=job.settings,
        **found,
        saved_megabytes=saved_megabytes,
        processor_seconds=round(seconds),
        step_seconds=_step_seconds(Path(cfg.work_dir)),
        epochs=cfg.train_cfg.max_epochs,
        config=fingerprint(_without_paths(cfg, job)),
        commit=commit,
        machine=f'{_processor()}, {cores()} cores, torch {torch.__version__}',
    )


def _train(cfg: Config) -> None:
    """Train as `mmlape train --resume` does."""
    first_weights, notes = start_run(cfg, 'auto')
    safe_loading()
    with weights_only_everywhere():
        runner = build_runner(cfg, first_weights)
        optimize_on_cpu(runner)
        log_notes(runner, notes)
        runner.train()


def _scored(
    checkpoint: Path, cfg: Config, data: Any, part: Any, view: str | None = None
) -> dict[str, Any]:
    if isinstance(data, FolderData):
        return accuracy_of(checkpoint, cfg, part, view)
    safe_loading()
    model = Model(cfg, checkpoint)
    finds_boxes, classes = data.task != 'segment', tuple(data.classes)
    if (model.finds_boxes, model.classes) != (finds_boxes, classes):
        answers = [
            f'{"boxes" if boxes else "label maps"} of {", ".join(names)}'
            for boxes, names in ((model.finds_boxes, model.classes), (finds_boxes, classes))
        ]
        raise ValueError(f'{checkpoint} finds {answers[0]}; the data have {answers[1]}')
    return score(model, data, part, view)


def _add_view(found: dict, view: str, checkpoint: Path, cfg: Config, data: Any) -> None:
    """Enter the primary measures of ``'corrupted'`` images, of a kind, or of images of ``'0.5x'`` the size."""
    if view == 'corrupted' or view in KINDS:
        views = CORRUPTIONS if view == 'corrupted' else [view]
        each = [_scored(checkpoint, cfg, data, data.val, name) for name in views]
    else:
        each = [_scored(checkpoint, rescaled(cfg, float(view[:-1])), data, data.val)]
    for name in each[0]['sampled']:
        found['metrics'][f'{name}, {view}'] = round(fmean(one['metrics'][name] for one in each), 3)
        sampled = np.mean([one['sampled'][name] for one in each], axis=0)
        found['sampled'][f'{name}, {view}'] = sampled.round(3).tolist()


class _Spent(threading.Thread):
    """Processor seconds of a run, also over its resumptions; written every half minute, so that a kill loses little."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.over, self.start_seconds = path, threading.Event(), time.process_time()
        self.before = json.loads(path.read_text()) if path.is_file() else 0.0

    def run(self) -> None:
        while not self.over.wait(30):
            self.write()

    def write(self) -> float:
        """Write and return the seconds so far, with those of earlier processes."""
        total = self.before + time.process_time() - self.start_seconds
        atomic_write(self.path, json.dumps(total).encode())
        return total


def _saved_megabytes(checkpoint: Path, cfg: Config) -> float:
    """Return the megabytes that a training step's forward pass saves for the backward pass, without the parameters."""
    init_default_scope(cfg.default_scope)
    model = MODELS.build({'data_preprocessor': cfg.get('data_preprocessor'), **cfg.model}).train()
    load_checkpoint(model, str(checkpoint), map_location='cpu', strict=True)
    known = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    sizes: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    np.random.seed(0)
    batch = next(iter(Runner.build_dataloader(cfg.train_dataloader, seed=0)))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(**model.data_preprocessor(batch, True), mode='loss')
    return round(sum(sizes.values()) / 1e6, 1)


def _step_seconds(work_dir: Path) -> float:
    """The median of the logged seconds per step."""
    return round(median(row['time'] for row in read_curves(work_dir) if 'loss' in row), 4)


def _without_paths(cfg: Config, job: Job) -> str:
    text = json.dumps(cfg.to_dict(), sort_keys=True, default=str)
    for path in (job.folder, job.root, job.folder.parents[1], CLONE):
        text = text.replace(path.as_posix(), '')
    return text.replace(cfg.experiment_name, '')


def _commit() -> str:
    command = ['git', '-C', str(CLONE), 'describe', '--always', '--dirty', '--abbrev=12']
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout.strip() or 'unknown'


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path('/proc/cpuinfo').read_text().splitlines():
            if line.startswith('model name'):
                return line.partition(':')[2].strip()
    return platform.processor() or os.uname().machine


def evaluate(experiment: Experiment, options: argparse.Namespace, root: Path) -> None:
    """Score any checkpoint on a part of the data, and print all measures."""
    variant = next(iter(experiment.variants))
    folder = options.work_dir / options.name
    _, data = run_config(experiment, variant, 0, root, folder.resolve())
    write_files(data.files)
    name = options.part
    part = data.part(name) if isinstance(data, FolderData) else part_named(data, name, root)
    checkpoint = Path(options.evaluate)
    if isinstance(data, FolderData) and not options.trust:
        raise ValueError(
            f'the config in {options.evaluate!r} is of a classifier, which is run as Python: add --trust if you trust '
            'its author'
        )
    safe_loading()
    _, text = load_with_config(checkpoint, 'cpu')
    found = _scored(checkpoint, config_inside(checkpoint, text, options.trust), data, part)
    print(f'{found["images"]} images of {part.images}')
    for name, value in found['metrics'].items():
        print(f'  {name:<16} {value:.2f}')
