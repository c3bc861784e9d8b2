"""The worked examples of docs/extending.md: its files are written as they stand there, and run."""

import importlib
import re
import runpy
import sys

import pytest
import torch
from docs_pages import REPO, python_fences
from mmengine.config import Config

from mmlape.checkpoints import FORMATS
from mmlape.registry import MODELS

PAGE = REPO / 'docs' / 'extending.md'


def files() -> dict[str, str]:
    """The page's files by name; each begins with its name in a comment."""
    named = {}
    for fence in python_fences(PAGE):
        (name,) = re.findall(r'\A# (\w+\.py)\n', fence.code)
        assert name not in named
        named[name] = fence.code
    return named


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder beside ``configs/``, on the path; what is registered in it is forgotten afterwards."""
    monkeypatch.setattr(MODELS, '_module_dict', dict(MODELS.module_dict))
    monkeypatch.setattr(FORMATS, 'data', dict(FORMATS.data))
    for name, code in files().items():
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.removesuffix('.py'), raising=False)
    (tmp_path / 'configs').symlink_to(REPO / 'configs')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ('config', 'part', 'count'),
    [
        ('my_fourier_detector.py', 'FourierPosition', 1),
        ('my_rms_detector.py', 'RMSNorm', 6),  # two in each of three layers
        ('my_vitdet.py', 'SimplePyramid', 1),
        ('my_two_stages.py', 'GatedMlp', 3),
    ],
)
def test_a_part_of_your_own_trains(folder, monkeypatch, capsys, config, part, count):
    monkeypatch.setattr(sys, 'argv', ['try_it.py', config])
    detector = runpy.run_path(str(folder / 'try_it.py'), run_name='__main__')['detector']
    said = capsys.readouterr().out
    assert 'nan' not in said and said.count('loss_cls') == 3
    assert said.endswith('not trained: []\n')
    parts = [module for module in detector.modules() if type(module).__name__ == part]
    assert len(parts) == count


def test_weights_in_a_format_of_your_own(folder, monkeypatch, capsys):
    config = Config.fromfile('my_moco_detector.py')
    names = ('qkv', 'proj', 'fc1', 'fc2', 'norm', 'pos_embed')
    vit = MODELS.build(
        dict(config.model.backbone.vit, joining=None, layer_scale=False, init_cfg=None)
    )
    theirs = {
        f'module.{part}.{name}': torch.randn_like(value)
        for part in ('base_encoder', 'momentum_encoder')
        for name, value in vit.state_dict().items()
        if any(word in name for word in names)
    }
    theirs |= {
        'module.base_encoder.head.0.weight': torch.zeros(8, 96),
        'module.predictor.0.weight': torch.zeros(2),
    }
    torch.save(dict(epoch=300, arch='vit_micro', state_dict=theirs), 'moco_v3.pth.tar')

    backbone = MODELS.build(config.model.backbone)
    backbone.init_weights()
    loaded = backbone.vit.state_dict()
    assert torch.equal(loaded['pos_embed'], theirs['module.base_encoder.pos_embed'])
    name = 'blocks.3.mlp.fc2.weight'
    assert torch.equal(loaded[name], theirs[f'module.base_encoder.{name}'])


def test_the_backbone_has_depths_and_weights_of_its_own(folder):
    importlib.import_module('my_backbone')
    vit = dict(type='mmlape.VisionTransformer', arch=dict(embed_dims=24, depth=2, num_heads=3))
    model = MODELS.build(dict(type='mmlape.SimplePyramid', vit=vit))
    assert [tuple(out.shape[2:]) for out in model(torch.randn(1, 3, 97, 131))] == [
        (28, 36),
        (14, 18),
        (7, 9),
        (4, 5),
    ]
    assert model.get_layer_depth('backbone.vit.blocks.1.norm1.weight', 'backbone.') == (2, 4)
    assert model.get_layer_depth('backbone.levels.1.weight', 'backbone.') == (3, 4)


def test_a_family_is_short_and_can_do_what_others_can(folder):
    """Under 80 lines; a classifier, layers by depth, freezing, recomputation and any size come with it."""
    assert files()['my_family.py'].count('\n') < 80
    importlib.import_module('my_family')
    from mmlape.pretraining import Classifier

    model = Classifier('mmlape.TwoStages', num_classes=5, norm_cfg=dict(type='mmlape.DTN'))
    assert model(torch.randn(2, 3, 33, 70)).shape == (2, 5)
    backbone = MODELS.build(dict(type='mmlape.TwoStages', frozen_stages=1, with_cp=True))
    maps = backbone.train()(torch.randn(1, 3, 33, 70))
    assert [tuple(m.shape[1:]) for m in maps] == [(32, 9, 18), (64, 5, 9)]
    maps[1].sum().backward()
    trained = {n.partition('.')[0] for n, p in backbone.named_parameters() if p.grad is not None}
    assert trained == {'patch_embed2', 'position2', 'block2'}
    assert backbone.get_layer_depth('block2.1.attn.qkv.weight') == (3, 5)
