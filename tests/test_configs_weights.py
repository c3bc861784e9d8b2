"""Rows of configs/lape and configs/dtn: published sizes, and weights that arrive."""

import json
import subprocess
import sys

import pytest
import timm
import torch
from config_utils import CONFIGS
from docs_pages import read_page
from mmengine.config import Config
from mmengine.registry import MODELS
from test_configs import build, load

from mmlape.norm import DTN, LN

FOLDER, DTN_FOLDER = CONFIGS / 'lape', CONFIGS / 'dtn'
COCO_3X = 'mask-rcnn_deit-{}-adapter{}_fpn_ms-3x_coco.py'
UPERNET = 'upernet_deit-{}-adapter{}_8xb2-160k_ade20k-512x512.py'
SEGMENTER = 'segmenter_deit-{}{}_mask_8xb1-160k_ade20k-512x512.py'
CASCADE = 'cascade-mask-rcnn_deit-s-adapter{}_fpn_ms-3x_coco.py'


def count(cfg: Config) -> int:
    if cfg.model.type == 'EncoderDecoder':  # Segmenter's head reads values as it is built
        model = MODELS.build(cfg.model)
    else:
        with torch.device('meta'):
            model = MODELS.build(cfg.model)
    return sum(parameter.numel() for parameter in model.parameters())


# In millions: LaPE (ICCV 2023) Tables 3 and 4, ViT-Adapter (ICLR 2023) Tables 1 to 3; READMEs of configs/dtn.
PARAMETERS = {
    **{COCO_3X.format(size, ''): millions for size, millions in (('t', 28), ('s', 48), ('b', 120))},
    CASCADE.format(''): 86,
    **{UPERNET.format(size, ''): millions for size, millions in (('t', 36), ('s', 58), ('b', 134))},
    SEGMENTER.format('t', ''): 7, SEGMENTER.format('s', ''): 26,  # published: 27; upstream's own has 26.0
    'retinanet_pvt-t': 23.0, 'retinanet_pvt-s': 34.2, 'retinanet_pvtv2-b2': 35.1, 'retinanet_pvtv2-b3': 55.0,
    'mask-rcnn_pvt-t': 32.9, 'mask-rcnn_pvt-s': 44.1, 'mask-rcnn_pvtv2-b2': 45.0, 'mask-rcnn_pvtv2-b3': 64.9,
}  # fmt: skip


@pytest.mark.parametrize('name', PARAMETERS)
def test_parameters_are_as_published(name):
    path = FOLDER / name if name.endswith('.py') else DTN_FOLDER / f'{name}_fpn_1x_coco.py'
    published = PARAMETERS[name]
    assert round(count(load(path)) / 1e6, int(isinstance(published, float))) == published


@pytest.mark.parametrize('source', ['timm', 'mmlape'])
@pytest.mark.parametrize('name', [COCO_3X.format('t', '-lape'), SEGMENTER.format('t', '-lape')])
def test_weights_arrive(name, source, tmp_path):
    """The ``init_cfg`` of a config survives the init of the rest: DeiT's weights, or (see README) ours with LaPE."""
    joining = dict(type='mmlape.LaPE') if source == 'mmlape' else None
    vit = dict(type='mmlape.VisionTransformer', arch='deit-tiny', joining=joining)
    model = MODELS.build(vit) if joining else timm.create_model('deit_tiny_patch16_224')
    state = {key: torch.randn_like(value) for key, value in model.state_dict().items()}
    torch.save(state if joining else dict(model=state), tmp_path / 'weights.pth')
    place = 'model.backbone.init_cfg.' if 'segmenter' in name else 'model.backbone.vit.init_cfg.'
    assert f'{place}source=mmlape' in (FOLDER / 'README.md').read_text()
    options = dict(source=source) if joining else {}
    vit = vit_of_initialised(name, checkpoint=str(tmp_path / 'weights.pth'), **options)
    loaded = vit.state_dict()
    joined = [key for key in loaded if 'norms' in key]
    assert len(joined) == 24
    names = ['patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'blocks.11.norm2.bias']
    names += ['cls_token'] * bool(vit.num_prefix_tokens) + joined * bool(joining)
    assert all(torch.equal(loaded[key], state[key]) for key in names)
    if not joining:
        assert all(torch.equal(n.weight, torch.ones(192)) for n in vit.position.joining.norms)


def vit_of_initialised(name: str, **init_cfg) -> torch.nn.Module:
    """The ViT of a config's model, which alone loads weights."""
    place = 'model.backbone.init_cfg' if 'segmenter' in name else 'model.backbone.vit.init_cfg'
    original = Config.fromfile(FOLDER / name)
    original.merge_from_dict({f'{place}.{key}': value for key, value in init_cfg.items()})
    cfg = load(FOLDER / name)
    backbone = original.model.backbone
    target = cfg.model.backbone.get('vit', cfg.model.backbone)
    target.init_cfg = backbone.get('vit', backbone).init_cfg
    model = build(cfg)
    return getattr(model.backbone, 'vit', model.backbone)


def test_the_readme_averages_five_seeds(tmp_path):
    """The last value of each run counts, in the last of its files where it was resumed."""
    (code,) = [
        fence.code for fence in read_page(FOLDER / 'README.md').fences if 'SEED' in fence.code
    ]
    script = code.split("<<'EOF'\n")[1].split('EOF')[0]
    paths = []
    for run, values in {
        'seed_121/1': [0.1, 0.2],
        'seed_121/2': [0.46],
        'seed_122/1': [0.3, 0.48],
    }.items():
        path = tmp_path / run / 'vis_data' / 'scalars.json'
        path.parent.mkdir(parents=True)
        lines = [{'lr': 1e-4}, *({'coco/bbox_mAP': value} for value in values), {'lr': 1e-5}]
        path.write_text('\n'.join(json.dumps(line) for line in lines))
        paths.append(str(path))
    result = subprocess.run(
        [sys.executable, '-', *paths], input=script, capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith('coco/bbox_mAP: 0.470, standard deviation 0.014')
    assert 'segm' not in result.stdout


def published_file(backbone, path) -> dict:
    """A file of random weights in the layout of the published classifiers."""
    state = {name: torch.randn_like(value) for name, value in backbone.state_dict().items()}
    state['pos_embed4'] = torch.randn(1, 50, 512)
    state.update({'cls_token': torch.randn(1, 1, 512), 'norm.weight': torch.randn(512)})
    state.update({'head.weight': torch.randn(1000, 512), 'head.bias': torch.randn(1000)})
    torch.save(state, path)
    return state


@pytest.mark.parametrize('extra', ['', '-dtn-lape'])
def test_weights_arrive_in_dtn(extra, tmp_path):
    """LayerNorm's weights go into DTN; DTN's own and LaPE's parameters keep their initial values."""
    plain = MODELS.build(load(DTN_FOLDER / 'mask-rcnn_pvt-t_fpn_1x_coco.py').model).backbone
    state = published_file(plain, tmp_path / 'pvt_tiny.pth')
    path = DTN_FOLDER / f'mask-rcnn_pvt-t{extra}_fpn_1x_coco.py'
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
