"""Whole runs stop before training where the data are wrong."""

import json

import pytest
import torch
from config_utils import coco_content, coco_dataset, write_coco
from mmengine.config import Config
from mmengine.model import BaseModel
from mmengine.registry import RUNNERS
from mmengine.runner import Runner

from mmlape.engine import EarlyHookRunner
from mmlape.registry import MODELS


@MODELS.register_module(force=True)
class NeverTrained(BaseModel):
    """A model that fails the test when a step is asked of it."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, *args, **kwargs):
        raise AssertionError('training started')


def runnable(root, work_dir, **options):
    loader = dict(batch_size=1, num_workers=0, sampler=dict(type='DefaultSampler', shuffle=False))
    return Config(
        dict(
            model=dict(type='mmlape.NeverTrained'),
            work_dir=str(work_dir),
            train_dataloader=dict(loader, dataset=coco_dataset(root)),
            train_cfg=dict(by_epoch=True, max_epochs=1),
            optim_wrapper=dict(optimizer=dict(type='SGD', lr=0.1)),
            default_scope='mmdet',
            custom_hooks=[dict(type='mmlape.CheckDataHook')],
            experiment_name=f'check-{work_dir.name}',
            **options,
        )
    )


def test_any_runner_stops_before_training(tmp_path):
    """Upstream trains on what has the wrong class names; with the hook it does not."""
    write_coco(tmp_path)
    cfg = runnable(tmp_path, tmp_path / 'plain')
    cfg.train_dataloader.dataset.metainfo.classes = ('red cell', 'yeast')
    runner = RUNNERS.build(cfg)
    assert type(runner) is Runner
    with pytest.raises(ValueError, match='1 of 2 class names are not categories'):
        runner.train()


def test_the_early_runner_is_before_upstreams_own_error(tmp_path):
    """An annotation file without images ends in a numpy error with the plain runner."""
    content = coco_content()
    write_coco(tmp_path, content)
    empty = dict(content, images=[], annotations=[])
    (tmp_path / 'annotations' / 'train.json').write_text(json.dumps(empty))
    with pytest.raises(ValueError, match='need at least one array'):
        RUNNERS.build(runnable(tmp_path, tmp_path / 'plain')).train()
    cfg = runnable(tmp_path, tmp_path / 'early', runner_type='mmlape.EarlyHookRunner')
    runner = RUNNERS.build(cfg)
    assert type(runner) is EarlyHookRunner
    with pytest.raises(ValueError, match="list 'images' of the annotation file is empty"):
        runner.train()
