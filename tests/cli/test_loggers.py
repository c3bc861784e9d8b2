"""`--log`: MMEngine's backends, whatever visualizer a config has."""

import importlib.util
from argparse import ArgumentTypeError

import pytest
from mmengine.config import Config

from mmlape import cli
from mmlape.cli.arguments import LOGGERS


def config(**visualizer):
    return Config(dict(work_dir='work_dirs/some', default_hooks={}, **visualizer))


@pytest.mark.parametrize(
    'cfg', [config(), config(visualizer=dict(type='DetLocalVisualizer')), config(visualizer=None)]
)
def test_backends_are_added_to_the_local_one(cfg):
    cli.log_to(cfg, ['tensorboard', 'wandb', 'mlflow'])
    cli.log_to(cfg, ['tensorboard'])
    local, *others = cfg.visualizer.vis_backends
    assert local.type == 'LocalVisBackend' and len(others) == 3
    assert others[1].init_kwargs.name == others[2].run_name == 'some'


def test_mistakes(monkeypatch):
    monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(ArgumentTypeError, match='wandb needs its package: pip install wandb'):
        LOGGERS('wandb')


def test_a_report_is_added_once_and_can_be_switched_off():
    cfg = config()
    cli.add_report(cfg)
    cfg.default_hooks.report.examples = 2
    cli.add_report(cfg)
    assert cfg.default_hooks.report == dict(type='mmlape.ReportHook', examples=2)
    cfg.default_hooks.report = None
    cli.add_report(cfg)
    assert cfg.default_hooks.report is None  # which the runner leaves out
