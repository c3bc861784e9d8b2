"""The options for what released code does otherwise than its paper: they parse, and change what the page says."""

import copy
import re
import shlex
from argparse import ArgumentParser
from functools import cache

import pytest
from config_utils import CONFIGS, classifier_configs
from docs_pages import read_page
from mmengine.config import Config, DictAction
from test_base_configs import leaves

from mmlape.cli.options import merge_overrides

PAGE = CONFIGS / 'imagenet' / 'README.md'
PATHS = {path.stem: path for path in classifier_configs()}
COMMANDS = [
    shlex.split(command)
    for fence in read_page(PAGE).fences
    for command in fence.code.replace('\\\n', ' ').splitlines()
    if re.match('mmlape (train|test) ', command) and '--cfg-options' in command
]
# One of each family: their base files are the same.
FAMILIES = {re.match(r'[a-z0-9]+', name)[0]: name for name in sorted(PATHS)}
each_family = pytest.mark.parametrize('name', FAMILIES.values())
SPLITS = ('val_dataloader', 'test_dataloader')


def overrides(command: list[str]) -> dict:
    """What a line of the page says, read as the tools read it."""
    parser = ArgumentParser()
    parser.add_argument('--cfg-options', nargs='+', action=DictAction)
    return parser.parse_known_args(command)[0].cfg_options


LAPE, LAPE_TEST, DTN = map(overrides, COMMANDS)


@cache
def _read(name: str) -> Config:
    return Config.fromfile(PATHS[name])


def load(name: str) -> Config:
    return copy.deepcopy(_read(name))


def changed(name: str, options: dict) -> dict:
    """What the options change in a config: new values by place, None for what is gone."""
    before, after = (
        dict(leaves(cfg.to_dict())) for cfg in (load(name), merge_overrides(load(name), options))
    )
    return {k: after.get(k) for k in {*before, *after} if before.get(k) != after.get(k)}


@each_family
def test_lape_tests_at_crop_ratio_one(name):
    both = {f'{split}.dataset.pipeline.1.scale': 224 for split in SPLITS}
    assert both == LAPE and changed(name, LAPE) == both
    assert changed(name, LAPE_TEST) == {'test_dataloader.dataset.pipeline.1.scale': 224}
    cfg = merge_overrides(load(name), LAPE)
    for split in SPLITS:
        resize, crop = cfg[split].dataset.pipeline[1:3]
        assert (resize.type, resize.edge, resize.scale) == ('ResizeEdge', 'short', 224)
        assert (crop.type, crop.crop_size) == ('CenterCrop', 224)


@each_family
def test_dtn_neither_mixes_nor_erases_and_averages(name):
    found = changed(name, DTN)
    assert found.pop('train_dataloader.dataset.pipeline.4.erase_prob') == 0
    ema = {key: found.pop(f'default_hooks.ema.{key}') for key in ('type', 'momentum', 'priority')}
    assert ema == dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL')
    mixing = {key for key in found if key.startswith('model.train_cfg')}
    assert all(found.pop(key) is None for key in mixing) and mixing
    # What is the script's own in most configs already.
    own = {'model.backbone.drop_path_rate': 0.1, 'optim_wrapper.clip_grad': None}
    own['optim_wrapper.clip_grad.max_norm'] = None
    assert found.items() <= own.items()
    if 'dtn' in name and re.match('(deit|vit|pvt-[ts])', name):
        assert found == {}
