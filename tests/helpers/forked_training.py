"""Trainings of a second: a server that has imported everything forks the processes that train.

Configs are the demo's, made small, with everything in them that a resumed run could lose.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import multiprocessing
import os
import random
import runpy
import signal
import sys
import time
import traceback
import zlib
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from unittest.mock import patch

import mmengine.config.config
import mmengine.registry
import mmengine.runner.runner
import numpy as np
import torch
import yapf.yapflib.yapf_api
from mmengine.config import Config
from mmengine.hooks import Hook
from ports import free_port

from mmlape import cli
from mmlape.registry import HOOKS

# Everything that a training imports on its way.
for toolbox in ('mmdet', 'mmseg'):
    for part in ('models', 'datasets', 'engine', 'evaluation', 'visualization'):
        importlib.import_module(f'{toolbox}.{part}')
importlib.import_module('matplotlib.backends.backend_agg')
for registry in vars(mmengine.registry).values():
    if isinstance(registry, mmengine.registry.Registry):
        registry.import_from_location()
gc.collect()
gc.freeze()  # upstream collects garbage at each start

REPO = Path(__file__).resolve().parents[2]
DEMO = REPO / 'configs' / 'demo'
INTERVAL = 3


@HOOKS.register_module(force=True)
class RecordSteps(Hook):
    """Append a line per iteration: number, checksum of the images, random numbers of the step."""

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        images = data_batch['inputs']
        self.images = zlib.crc32(b''.join(image.numpy().tobytes() for image in images))

    def after_train_iter(self, runner, batch_idx, data_batch=None, outputs=None):
        draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        line = [runner.iter, batch_idx, self.images, *draws]
        with open(Path(runner.work_dir, f'steps_{runner.rank}.jsonl'), 'a') as file:
            file.write(json.dumps(line) + '\n')


@dataclass(frozen=True)
class Case:
    """A training to be killed."""

    config: str
    processes: int
    by_epoch: bool
    workers: int

    def build(self, data: Path, work_dir: Path, steps: int) -> Config:
        cfg = Config.fromfile(DEMO / self.config)
        cfg.work_dir, cfg.launcher = str(work_dir), 'pytorch' if self.processes > 1 else 'none'
        pipeline = cfg.train_dataloader.dataset.pipeline
        jitter = [dict(type='PhotoMetricDistortion'), dict(type='RandomFlip', prob=0.5)]
        pipeline[-1:-1] = jitter
        for loader in (cfg.train_dataloader, cfg.val_dataloader):
            loader.batch_size = 2
            loader.dataset.data_root = f'{data}/'
        _shrink(cfg.model)
        if 'ann_file' in cfg.val_evaluator:
            cfg.val_evaluator.ann_file = f'{data}/annotations/instances_val.json'
        cfg.train_dataloader.num_workers = self.workers
        cfg.train_dataloader.persistent_workers = self.workers > 0
        cfg.custom_hooks = [
            dict(type='mmlape.RecordSteps'),
            dict(type='EMAHook', momentum=0.1),
            *cfg.get('custom_hooks', []),
        ]
        # No seed: the run draws one and stores it.
        cfg.randomness = dict(seed=None)
        cfg.default_hooks.checkpoint.update(interval=INTERVAL, save_best='auto', rule='greater')
        cfg.default_hooks.logger.interval = 1
        if self.by_epoch:
            cfg.train_dataloader.sampler = dict(type='DefaultSampler', shuffle=True)
            if 'Det' in cfg.visualizer.type:
                cfg.train_dataloader.batch_sampler = dict(type='AspectRatioBatchSampler')
            epoch = 10 // (2 * self.processes) + (10 % (2 * self.processes) > 0)
            cfg.train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=-(-steps // epoch))
            cfg.log_processor.by_epoch = True
        else:
            cfg.train_cfg = dict(type='IterBasedTrainLoop', max_iters=steps, val_interval=4)
        return cfg


def _shrink(model) -> None:
    if 'vit' in model.backbone:
        model.backbone.vit.arch.embed_dims, model.backbone.conv_inplanes = 24, 8
        model.neck.update(in_channels=[24] * 4, out_channels=24)
        for head in (model.decode_head, model.auxiliary_head):
            head.in_channels = head.channels = 24
        model.decode_head.embed_dims = 24
    else:
        dims = [8, 16, 20, 24]
        model.backbone.arch.update(embed_dims=dims, depths=[1] * 4)
        model.neck.update(in_channels=dims, out_channels=24)
        model.bbox_head.update(in_channels=24, feat_channels=24, stacked_convs=1)


SEGMENTER = 'segmenter_vit-micro-adapter-lape_mask_digit-scenes.py'
RETINANET = 'retinanet_pvt-micro-dtn_fpn_digit-scenes.py'
CASES = {
    'segmentation, 1 process, iterations': Case(SEGMENTER, 1, False, 0),
    'detection, 1 process, epochs': Case(RETINANET, 1, True, 1),
    'segmentation, 2 processes, epochs': Case(SEGMENTER, 2, True, 1),
    'detection, 2 processes, iterations': Case(RETINANET, 2, False, 0),
}


@cache
def _server() -> multiprocessing.context.ForkServerContext:
    """What forks. The process of the tests cannot: after a backward of DDP or of a compiled graph, autograd has threads
    in it, and refuses to work in its forks."""
    context = multiprocessing.get_context('forkserver')
    context.set_forkserver_preload(['forked_training', 'training_hooks', 'toy_training'])
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))):
        forkserver.ensure_running()
    return context


class Attempt:
    """The forked processes of one start of a training."""

    def __init__(self, cfg: Config, processes: int) -> None:
        self.log = Path(cfg.work_dir, 'attempts.log')
        self.log.parent.mkdir(parents=True, exist_ok=True)
        names = dict(MASTER_ADDR='127.0.0.1', MASTER_PORT=free_port(), WORLD_SIZE=processes)
        self.children = []
        for rank in range(processes):
            own = dict(names, RANK=rank, LOCAL_RANK=rank) if processes > 1 else {}
            environment = {**os.environ, **{name: str(value) for name, value in own.items()}}
            child = _server().Process(target=_train, args=(cfg, self.log, environment))
            child.start()
            self.children.append(child)

    def wait(self, seconds: float = 180) -> list[int]:
        """The exit codes."""
        end = time.monotonic() + seconds
        for child in self.children:
            child.join(max(0, end - time.monotonic()))
        codes = [child.exitcode for child in self.children]
        if None in codes:
            self.kill()
            raise TimeoutError(self.log.read_text()[-3000:])
        return codes

    def alive(self) -> bool:
        return all(child.is_alive() for child in self.children)

    def kill(self) -> None:
        """SIGKILL for all of them and their workers."""
        for child in self.children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.kill()  # one that has just been forked is not yet the head of its group
            child.join()


def _train(cfg: Config, log: Path, environment: dict) -> None:
    """What a child does; an error is written to the log, and its exit code is 1."""
    os.setpgid(0, 0)
    os.environ.clear()
    os.environ.update(environment)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout = sys.stderr = open(1, 'w', buffering=1, closefd=False)  # not pytest's  # noqa: SIM115
    # Describing the machine and making configs pretty takes longer than these trainings.
    plain = lambda text, **_: (text, True)  # noqa: E731
    mmengine.config.config.FormatCode = yapf.yapflib.yapf_api.FormatCode = plain
    mmengine.runner.runner.collect_env = dict
    code = 1
    try:
        tool = runpy.run_path(str(REPO / 'tools' / 'train.py'))
        with cli.joined(cfg):
            tool['train'](cfg, 'auto')
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        # At once: multiprocessing would wait for data workers, which wait for this process.
        os._exit(code)
