"""Configs that name a hook that was removed still build and train."""

import pytest
from config_utils import CONFIGS
from mmengine.config import Config
from toy_training import toy_config, toy_run

NAMES = ['default_runtime_mmdet', 'default_runtime_mmseg', 'default_runtime_mmpretrain', 'demo_runtime']  # fmt: skip


def test_the_hook_of_hung_processes_says_that_it_does_nothing(tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr('mmengine.logging.MMLogger.warning', lambda self, text: said.append(text))
    cfg = toy_config(tmp_path)
    cfg.default_hooks.hung = dict(type='mmlape.HungProcessHook', timeout=600)
    assert toy_run(cfg).iter == 12
    assert len([text for text in said if 'HungProcessHook was removed' in text]) == 1


@pytest.mark.parametrize('name', NAMES)
def test_base_configs_say_for_how_long_a_process_waits(name):
    cfg = Config.fromfile(CONFIGS / '_base_' / f'{name}.py')
    assert cfg.env_cfg.dist_cfg == dict(backend='nccl', timeout=1800)
    assert 'hung' not in cfg.default_hooks
