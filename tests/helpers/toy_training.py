"""A training of a linear layer by MMEngine's runner, with everything random that can be, in milliseconds."""

import contextlib
import random

import numpy as np
import torch
from backbone_variants import build_vit
from mmengine.config import Config
from mmengine.dataset import BaseDataset
from mmengine.evaluator import BaseMetric
from mmengine.hooks import Hook
from mmengine.model import BaseModel
from mmengine.registry import RUNNERS

from mmlape.registry import DATASETS, HOOKS, METRICS, MODELS


@DATASETS.register_module(force=True)
class ToyData(BaseDataset):
    """Numbers, each with three random ones: from Python, NumPy and torch."""

    def __init__(self, length=10):
        self.length = length
        super().__init__()

    def load_data_list(self):
        return [
            dict(number=number, width=1 + number % 3, height=2) for number in range(self.length)
        ]

    def prepare_data(self, idx):
        draws = [random.random(), float(np.random.rand()), float(torch.rand(()))]
        return dict(inputs=torch.tensor([float(idx), *draws]))


@MODELS.register_module(force=True)
class ToyModel(BaseModel):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)
        self.register_buffer('mean', torch.zeros(4))
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, inputs, mode='tensor'):
        images = torch.stack(inputs)
        if self.training:
            self.mean.lerp_(images.mean(0), 0.1)
        out = self.layer(self.drop(images - self.mean)).mean() / 10
        return dict(loss=out**2) if mode == 'loss' else [out]


@MODELS.register_module(force=True)
class ToyBackbone(BaseModel):
    """A ViT in the toy training: its four numbers take the place of an image."""

    def __init__(self, **options):
        super().__init__()
        self.backbone = build_vit(out_type='avg', **options)

    def forward(self, inputs, mode='tensor'):
        images = torch.stack(inputs).repeat(1, 768).view(-1, 3, 32, 32)
        out = self.backbone(images)[0].square().mean() / 10
        return dict(loss=out) if mode == 'loss' else [out]


@METRICS.register_module(force=True)
class ToyMetric(BaseMetric):
    def process(self, data_batch, data_samples):
        self.results += [float(out) for out in data_samples]

    def compute_metrics(self, results):
        return dict(mIoU=-abs(results[0]), aAcc=-abs(results[0]))


@HOOKS.register_module(force=True)
class Seen(Hook):
    """Keeps what was trained on, and stops as a kill does where it is told."""

    def __init__(self, stop_at=None, stop_in_val=False):
        self.batches, self.stop_at, self.stop_in_val = {}, stop_at, stop_in_val

    def before_train_iter(self, runner, batch_idx, data_batch=None):
        if runner.iter == self.stop_at and not self.stop_in_val:
            raise KeyboardInterrupt
        self.batches[runner.iter] = (
            batch_idx,
            torch.stack(data_batch['inputs']).tolist(),
            [random.random(), float(np.random.rand()), float(torch.rand(()))],
        )

    def before_val_epoch(self, runner):
        if runner.iter == self.stop_at and self.stop_in_val:
            raise KeyboardInterrupt


def toy_config(work_dir, by_epoch=False, seen=None, loader=None, checkpoint=None, **options):
    """10 numbers, batches of 3; 12 iterations (3 epochs of 4); a checkpoint every 2 iterations."""
    loader = dict(
        dict(
            batch_size=3,
            num_workers=0,
            sampler=dict(type='DefaultSampler' if by_epoch else 'InfiniteSampler', shuffle=True),
        ),
        **(loader or {}),
    )
    epochs = dict(type='EpochBasedTrainLoop', max_epochs=3)
    iterations = dict(type='IterBasedTrainLoop', max_iters=12, val_interval=4)
    cfg = dict(
        model=dict(type='mmlape.ToyModel'),
        work_dir=str(work_dir),
        train_dataloader=dict(loader, dataset=dict(type='mmlape.ToyData')),
        train_cfg=epochs if by_epoch else iterations,
        val_dataloader=dict(
            batch_size=1,
            num_workers=0,
            dataset=dict(type='mmlape.ToyData', length=2),
            sampler=dict(type='DefaultSampler', shuffle=False),
        ),
        val_cfg=dict(type='ValLoop'),
        val_evaluator=dict(type='mmlape.ToyMetric'),
        optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.05, momentum=0.9)),
        param_scheduler=dict(type='LinearLR', start_factor=0.1, by_epoch=False, end=10),
        default_hooks=dict(
            checkpoint=dict(
                dict(
                    type='mmlape.CheckpointHook',
                    by_epoch=False,
                    interval=2,
                    save_best='mIoU',
                    max_keep_ckpts=2,
                ),
                **(checkpoint or {}),
            ),
            exact_resume=dict(type='mmlape.ExactResumeHook'),
        ),
        custom_hooks=[
            dict(type='mmlape.Seen', **(seen or {})),
            dict(type='EMAHook', momentum=0.1),
        ],
        randomness=dict(seed=3),
        log_level='ERROR',
        experiment_name=f'toy-{work_dir}-{random.random()}',
        default_scope='mmengine',
    )
    return Config({**cfg, **options})


def toy_run(cfg, resume=None):
    """Train, from a checkpoint if one is named; return the runner, also where it was stopped."""
    runner = RUNNERS.build(cfg)
    runner._resume, runner._load_from = resume is not None, resume and str(resume)
    with contextlib.suppress(KeyboardInterrupt):
        runner.train()
    return runner


def seen_by(runner):
    return next(hook.batches for hook in runner.hooks if isinstance(hook, Seen))
