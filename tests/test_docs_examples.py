"""The Python of the pages: all of it parses, configs build a model, and worked examples are run as they stand there."""

import ast
import importlib
import re
import runpy
import sys

import pytest
import torch
from backbone_variants import build_adapter, build_vit
from docs_pages import PAGES, REPO, python_fences
from mmdet.structures import DetDataSample
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from test_configs import load

from mmlape import registry
from mmlape.checkpoints import FORMATS
from mmlape.shipped import read_config

pytestmark = pytest.mark.usefixtures('cheap_values')

FENCES = {
    f'{path.relative_to(REPO).as_posix()}:{fence.line}': fence.code
    for path in PAGES
    for fence in python_fences(path)
}
# docs/extending.md has a test of its own.
CONFIGS = [
    name
    for name, code in FENCES.items()
    if '_base_ =' in code and not name.startswith('docs/extending.md:')
]


def test_all_of_it_parses():
    for name, code in FENCES.items():
        ast.parse(code, name)
    assert len(CONFIGS) >= 5 and any(name.startswith('README.md') for name in CONFIGS)


@pytest.mark.parametrize('name', CONFIGS)
def test_a_config_builds(name, tmp_path):
    """Model and optimizer, of bases that an installed package finds."""
    (path := tmp_path / 'page_config.py').write_text(FENCES[name])
    config, model = read_config(path), MODELS.build(load(path).model).eval()
    optimizer = build_optim_wrapper(model, config.optim_wrapper).optimizer
    image = torch.randn(1, 3, 97, 131)
    with torch.no_grad():
        features = model.extract_feat(image)
        if config.get('default_scope') == 'mmseg':
            for head in (model.decode_head, getattr(model, 'auxiliary_head', None)):
                assert head is None or head(features).shape[:2] == (1, 150)
        elif hasattr(model, 'panoptic_head'):
            _, masks = model.panoptic_head(features, [DetDataSample()])
            # A quarter of the image's sides: of 97 x 131 for EoMT, of the padded image for others.
            assert masks[-1].shape in ((1, 200, 25, 33), (1, 200, 28, 36))
        elif hasattr(model, 'encoder'):  # DETR's queries need larger images
            assert [each.shape[1] for each in features] == [model.embed_dims] * 4
        else:
            head = getattr(model, 'rpn_head', None) or model.bbox_head
            assert len(head(features)[0]) == len(head.prior_generator.strides) == 5
    assert sum(value.numel() for value in model.parameters()) > 1e7
    if name.startswith('README.md'):  # swapping the backbone takes at most 15 lines
        assert len(FENCES[name].strip().splitlines()) <= 15
        assert config.model.backbone.vit.init_cfg.model == 'deit_small_patch16_224'
        sizes = [tuple(maps.shape[-2:]) for maps in features]
        assert sizes == [(25, 33), (13, 17), (7, 9), (4, 5), (2, 3)]
        rates = sorted({group['lr'] for group in optimizer.param_groups})
        assert type(optimizer).__name__ == 'AdamW'
        assert len(rates) == 14 and rates[-1] == 1e-4


def test_counts_of_the_relative_bias():
    """The page's: offsets of 14 x 14 patches for heads and layers of DeiT-Ti, and LaPE's LayerNorms over the keys."""
    counts = []
    for options in (dict(), dict(layer_norm=True)):
        with torch.device('meta'):
            model = build_vit(
                arch='deit-tiny',
                img_size=224,
                attention_position=dict(options, type='mmlape.RelativePositionBias'),
            )
        positions = (block.attn.position for block in model.blocks)
        counts.append(sum(p.numel() for each in positions for p in each.parameters()))
    assert counts == [26_244, 30_948]
    text = (REPO / 'docs' / 'position.md').read_text()
    assert all(f'{count / 1e3:.1f} K' in text for count in counts)


# The files of docs/extending.md: each begins with its name in a comment.
FILES = {
    re.match(r'# (\w+\.py)\n', code)[1]: code
    for name, code in FENCES.items()
    if name.startswith('docs/extending.md:')
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, on the path; what is registered in it is forgotten afterwards."""
    ours = registry.MODELS
    monkeypatch.setattr(ours, '_module_dict', dict(ours.module_dict))
    monkeypatch.setattr(FORMATS, 'data', dict(FORMATS.data))
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
        monkeypatch.delitem(sys.modules, name.removesuffix('.py'), raising=False)
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


@pytest.mark.parametrize('joining', ['LaPE', 'UnsharedJoining'])
def test_a_position_of_your_own_works_with_every_joining(folder, joining):
    importlib.import_module('my_position')
    model = build_adapter(
        dict(position=dict(type='mmlape.FourierPosition'), joining=dict(type=f'mmlape.{joining}'))
    )
    sum(out.mean() for out in model(torch.randn(1, 3, 40, 70))).backward()
    assert model.vit.position.embedding.frequencies.grad.abs().sum() > 0


def test_weights_in_a_format_of_your_own(folder, monkeypatch, capsys):
    config = read_config('my_moco_detector.py')
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
    assert FILES['my_family.py'].count('\n') < 80
    importlib.import_module('my_family')
    from mmlape.research.pretraining import Classifier

    model = Classifier('mmlape.TwoStages', num_classes=5, norm_cfg=dict(type='mmlape.DTN'))
    assert model(torch.randn(2, 3, 33, 70)).shape == (2, 5)
    backbone = MODELS.build(dict(type='mmlape.TwoStages', frozen_stages=1, with_cp=True))
    maps = backbone.train()(torch.randn(1, 3, 33, 70))
    assert [tuple(m.shape[1:]) for m in maps] == [(32, 9, 18), (64, 5, 9)]
    maps[1].sum().backward()
    trained = {n.partition('.')[0] for n, p in backbone.named_parameters() if p.grad is not None}
    assert trained == {'patch_embed2', 'position2', 'block2'}
    assert backbone.get_layer_depth('block2.1.attn.qkv.weight') == (3, 5)


# Micro networks of every kind are exported by tests/test_registry.py, whole models by tests/export.
(BACKBONE,) = (code for name, code in FENCES.items() if name.startswith('docs/export.md:'))


@pytest.mark.slow
def test_a_backbone_as_a_program(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(BACKBONE, 'export.md', 'exec'), names)
    loaded, image = torch.export.load('backbone.pt2').module(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        for output, wanted in zip(loaded(image), names['backbone'](image), strict=True):
            torch.testing.assert_close(output, wanted, rtol=1e-5, atol=1e-5)
