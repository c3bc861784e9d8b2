"""The configs of configs/dtn: recipes, weights that arrive, and what DTN and LaPE change."""

import pytest
import torch
from config_utils import CONFIGS
from mmengine.config import Config
from mmengine.registry import MODELS
from test_configs import load

from mmlape.norm import DTN, LN

FOLDER = CONFIGS / 'dtn'


def test_dtn_in_an_adapters_vit():
    """One line over the LaPE paper's baseline: DTN in 10 of 12 layers, and nothing else."""
    name = 'mask-rcnn_deit-s-adapter{}_fpn_ms-3x_coco.py'
    ln = Config.fromfile(CONFIGS / 'lape' / name.format('')).to_dict()
    dtn = Config.fromfile(FOLDER / name.format('-dtn')).to_dict()
    assert dtn['model']['backbone']['vit'].pop('norm_cfg') == dict(type='mmlape.DTN')
    assert {**ln, 'filename': None} == {**dtn, 'filename': None}
    cfg = load(FOLDER / name.format('-dtn'))
    with torch.device('meta'):
        vit = MODELS.build(cfg.model.backbone).vit
    assert [type(block.norm2) for block in vit.blocks] == [DTN] * 10 + [LN] * 2
    assert {block.norm2.num_heads for block in vit.blocks[:10]} == {6} and vit.prefix_after == 0
    assert round(count(cfg.model) / 1e6, 1) == 47.8


@pytest.mark.parametrize(
    ('name', 'millions'),
    [
        ('retinanet_pvt-t', 23.0),
        ('retinanet_pvt-s', 34.2),
        ('retinanet_pvtv2-b2', 35.1),
        ('mask-rcnn_pvt-t', 32.9),
        ('mask-rcnn_pvt-s', 44.1),
        ('mask-rcnn_pvtv2-b2', 45.0),
        ('retinanet_pvtv2-b3', 55.0),
        ('mask-rcnn_pvtv2-b3', 64.9),
    ],
)
def test_parameters_are_those_in_the_readme(name, millions):
    """In millions; the backbone has as many as MMDetection's own."""
    cfg = load(FOLDER / f'{name}_fpn_1x_coco.py')
    assert round(count(cfg.model) / 1e6, 1) == millions
    assert f'[{name}_fpn_1x_coco]' in (FOLDER / 'README.md').read_text()
    v2 = 'V2' if 'pvtv2' in name else ''
    layers = {'t': [2, 2, 2, 2], 's': [3, 4, 6, 3], 'b2': [3, 4, 6, 3], 'b3': [3, 4, 18, 3]}
    layers = layers[name.rpartition('-')[2]]
    theirs = MODELS.build(dict(type=f'PyramidVisionTransformer{v2}', num_layers=layers))
    assert sum(p.numel() for p in theirs.parameters()) == count(cfg.model.backbone)


def count(config) -> int:
    """Parameters of a model, without memory for them."""
    with torch.device('meta'):
        return sum(p.numel() for p in MODELS.build(config).parameters())


def published_file(backbone, path) -> dict:
    """A file of random weights in the layout of the published classifiers."""
    state = {name: torch.randn_like(value) for name, value in backbone.state_dict().items()}
    state['pos_embed4'] = torch.randn(1, 50, 512)
    state.update({'cls_token': torch.randn(1, 1, 512), 'norm.weight': torch.randn(512)})
    state.update({'head.weight': torch.randn(1000, 512), 'head.bias': torch.randn(1000)})
    torch.save(state, path)
    return state


@pytest.mark.parametrize('extra', ['', '-dtn-lape'])
def test_weights_arrive(extra, tmp_path):
    """LayerNorm's weights go into DTN; DTN's own and LaPE's parameters keep their initial values."""
    plain = MODELS.build(load(FOLDER / 'mask-rcnn_pvt-t_fpn_1x_coco.py').model).backbone
    state = published_file(plain, tmp_path / 'pvt_tiny.pth')
    path = FOLDER / f'mask-rcnn_pvt-t{extra}_fpn_1x_coco.py'
    cfg, init = load(path), Config.fromfile(path).model.backbone.init_cfg
    cfg.model.backbone.init_cfg = {**init, 'checkpoint': str(tmp_path / 'pvt_tiny.pth')}
    backbone = MODELS.build(cfg.model.backbone)
    backbone.init_weights()
    loaded = backbone.state_dict()
    for name, value in state.items():
        if name.split('.')[0] not in ('cls_token', 'norm', 'head', 'pos_embed4'):
            assert torch.equal(loaded[name], value), name
    assert torch.equal(loaded['pos_embed4'], state['pos_embed4'][:, 1:])
    assert isinstance(backbone.block1[0].norm1, DTN if extra else LN)
    fresh = set(loaded) - set(state)
    assert {name.split('.')[-1] for name in fresh} == (
        {'omega', 'weight', 'bias'} if extra else set()
    )
    assert all(torch.equal(loaded[n], torch.zeros_like(loaded[n])) for n in fresh if 'omega' in n)
