"""Rows of configs/lape and configs/dtn: published sizes, and weights that arrive."""

import json
import subprocess
import sys

import pytest
import timm
import torch
import yaml
from config_utils import CONFIGS
from docs_pages import read_page
from mmengine.config import Config
from mmengine.registry import MODELS
from test_configs import build, load

pytestmark = pytest.mark.usefixtures('cheap_values')

FOLDER, DTN_FOLDER = CONFIGS / 'lape', CONFIGS / 'dtn'
COCO_3X = 'mask-rcnn_deit-{}-adapter{}_fpn_ms-3x_coco.py'
UPERNET = 'upernet_deit-{}-adapter{}_8xb2-160k_ade20k-512x512.py'
SEGMENTER = 'segmenter_deit-{}{}_mask_8xb1-160k_ade20k-512x512.py'
CASCADE = 'cascade-mask-rcnn_deit-s-adapter{}_fpn_ms-3x_coco.py'


# In millions: LaPE (ICCV 2023) Tables 3 and 4, ViT-Adapter (ICLR 2023) Tables 1 to 3; READMEs of configs/dtn.
PARAMETERS = {
    **{COCO_3X.format(size, ''): millions for size, millions in (('t', 28), ('s', 48), ('b', 120))},
    CASCADE.format(''): 86,
    **{UPERNET.format(size, ''): millions for size, millions in (('t', 36), ('s', 58), ('b', 134))},
    SEGMENTER.format('t', ''): 7, SEGMENTER.format('s', ''): 26,  # published: 27; upstream's own has 26.0
    'retinanet_pvt-t': 23.0, 'retinanet_pvt-s': 34.2, 'retinanet_pvtv2-b2': 35.1, 'retinanet_pvtv2-b3': 55.0,
    'mask-rcnn_pvt-t': 32.9, 'mask-rcnn_pvt-s': 44.1, 'mask-rcnn_pvtv2-b2': 45.0, 'mask-rcnn_pvtv2-b3': 64.9,
}  # fmt: skip


def test_parameters_are_as_published():
    """Of the metafiles, which tests/test_zoo.py compares with the models."""
    for name, published in PARAMETERS.items():
        folder = FOLDER if name.endswith('.py') else DTN_FOLDER
        name = name.removesuffix('.py') if folder == FOLDER else f'{name}_fpn_1x_coco'
        models = yaml.safe_load((folder / 'metafile.yml').read_text())['Models']
        (own,) = [model['Metadata']['Parameters'] for model in models if model['Name'] == name]
        assert round(own / 1e6, int(isinstance(published, float))) == published, name


@pytest.mark.parametrize(
    ('name', 'source', 'place'),
    [
        (COCO_3X.format('t', '-lape'), 'timm', 'model.backbone.vit.init_cfg'),
        (SEGMENTER.format('t', '-lape'), 'mmlape', 'model.backbone.init_cfg'),
    ],
)
def test_weights_arrive(name, source, place, tmp_path):
    """The ``init_cfg`` of a config survives the init of the rest: DeiT's weights, or (see README) ours with LaPE."""
    assert f'{place}.source=mmlape' in (FOLDER / 'README.md').read_text()
    if source == 'timm':
        theirs = timm.create_model('deit_tiny_patch16_224')
    else:
        lape = dict(type='mmlape.LaPE')
        theirs = MODELS.build(dict(type='mmlape.VisionTransformer', arch='deit-tiny', joining=lape))
    state = {key: torch.randn_like(value) for key, value in theirs.state_dict().items()}
    torch.save(dict(model=state) if source == 'timm' else state, tmp_path / 'weights.pth')
    own = Config.fromfile(FOLDER / name)
    own.merge_from_dict({f'{place}.checkpoint': str(tmp_path / 'weights.pth')})
    if source == 'mmlape':
        own.merge_from_dict({f'{place}.source': source})
    cfg = load(FOLDER / name)  # without any other weights
    for model in (own.model, cfg.model):
        model.vit = model.backbone.get('vit', model.backbone)
    cfg.model.pop('vit').init_cfg = own.model.vit.init_cfg
    backbone = build(cfg).backbone
    vit = getattr(backbone, 'vit', backbone)
    loaded = vit.state_dict()
    joined = [key for key in loaded if 'norms' in key]
    assert len(joined) == 24
    names = ['patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'blocks.11.norm2.bias']
    names += ['cls_token', *joined] if source == 'mmlape' else []
    assert all(torch.equal(loaded[key], state[key]) for key in names)
    if source == 'timm':
        assert all(torch.equal(n.weight, torch.ones(192)) for n in vit.position.joining.norms)


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


def test_weights_arrive_in_dtn(tmp_path):
    """LayerNorm's weights go into DTN; DTN's own and LaPE's parameters keep their initial values."""
    plain = MODELS.build(load(DTN_FOLDER / 'mask-rcnn_pvt-t_fpn_1x_coco.py').model).backbone
    state = {name: torch.randn_like(value) for name, value in plain.state_dict().items()}
    extra = {'pos_embed4': torch.randn(1, 50, 512), 'head.weight': torch.randn(1000, 512)}
    torch.save({**state, **extra, 'cls_token': torch.randn(1, 1, 512)}, tmp_path / 'pvt_tiny.pth')
    path = DTN_FOLDER / 'mask-rcnn_pvt-t-dtn-lape_fpn_1x_coco.py'
    cfg, init = load(path).model.backbone, Config.fromfile(path).model.backbone.init_cfg
    cfg.init_cfg = {**init, 'checkpoint': str(tmp_path / 'pvt_tiny.pth')}
    backbone = MODELS.build(cfg)
    backbone.init_weights()
    loaded = backbone.state_dict()
    state['pos_embed4'] = extra['pos_embed4'][:, 1:]
    assert [name for name, value in state.items() if not torch.equal(loaded[name], value)] == []
    fresh = set(loaded) - set(state)
    assert {name.split('.')[-1] for name in fresh} == {'omega', 'weight', 'bias'}
    assert not any(loaded[name].any() for name in fresh if 'omega' in name)
