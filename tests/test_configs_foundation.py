"""The rows of foundation models: each is what its name says and builds; each kind trains a step on a cut backbone."""

import ast
from functools import cache
from pathlib import Path

import pytest
import timm
import torch
import yaml
from config_utils import CONFIGS, cut, foundation_configs, marked, use_scope
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from test_configs import load, read_a_data_set, train_a_step_and_predict
from torch import nn

from mmlape.backbones.timm_archs import timm_arch
from mmlape.checkpoints import convert_with_report

FOLDER = CONFIGS / 'foundation'
BASES = CONFIGS / '_base_' / 'foundation'
SIZES = {'s': (384, 12), 'b': (768, 12), 'l': (1024, 24)}
BACKBONES = {
    'dinov3-s': 'vit_small_patch16_dinov3.lvd1689m',
    'dinov3-b': 'vit_base_patch16_dinov3.lvd1689m',
    'dinov3-l': 'vit_large_patch16_dinov3.lvd1689m',
    'dinov2-s': 'vit_small_patch14_dinov2.lvd142m',
    'dinov2-b': 'vit_base_patch14_dinov2.lvd142m',
    'dinov2-l': 'vit_large_patch14_dinov2.lvd142m',
    'dinov2-reg4-s': 'vit_small_patch14_reg4_dinov2.lvd142m',
    'dinov2-reg4-b': 'vit_base_patch14_reg4_dinov2.lvd142m',
    'dinov2-reg4-l': 'vit_large_patch14_reg4_dinov2.lvd142m',
    'eva02-b': 'eva02_base_patch14_224.mim_in22k',
    'siglip2-b': 'vit_base_patch16_siglip_512.v2_webli',
}
# Patterns of names, by kind of row, and the base of each but for its backbone (some have another for ViT-L). UPerNet
# on a plain ViT-L is trained otherwise than on the smaller ones.
KINDS = {
    'upernet': ('upernet_{}_{}_ade20k-512x512', 'upernet'),
    'upernet-adapter': ('upernet_{}-adapter_8xb2-160k_ade20k-512x512', 'upernet_adapter'),
    'mask2former-semantic': ('mask2former_{}_8xb2-40k_ade20k-512x512', 'mask2former_semantic_plain'),
    'mask2former-semantic-adapter': ('mask2former_{}-adapter_8xb2-40k_ade20k-512x512', 'mask2former_semantic_adapter'),
    'linear': ('linear_{}_8xb2-40k_ade20k-512x512', 'linear'),
    'mask-rcnn': ('mask-rcnn_{}_sfp_lsj-100e_coco', 'mask-rcnn'),
    'mask-rcnn-adapter': ('mask-rcnn_{}-adapter_fpn_ms-3x_coco', 'mask-rcnn_adapter'),
    'mask2former-instance': ('mask2former_{}_sfp_lsj-1x_coco', 'mask2former_instance_plain'),
    'mask2former-instance-adapter': ('mask2former_{}-adapter_lsj-1x_coco', 'mask2former_instance_adapter'),
}  # fmt: skip
# Another adapter on one backbone.
LIGHT = 'upernet_dinov3-s-light-adapter_8xb2-160k_ade20k-512x512'
# Of which a step is trained by the fast tests.
QUICK = ('linear', 'upernet-adapter', 'mask-rcnn', 'mask2former-instance')
pytestmark = pytest.mark.usefixtures('cheap_values')


def name_of(kind: str, backbone: str) -> str:
    batch = '8xb2-80k' if backbone.endswith('-l') else '4xb8-60k'
    return KINDS[kind][0].format(backbone, batch)


ROWS = {name_of(kind, backbone): (kind, backbone) for kind in KINDS for backbone in BACKBONES}
# One of the smaller backbones per kind, in turns.
_SMALLER = [backbone for backbone in BACKBONES if not backbone.endswith('-l')]
SOME = {
    kind: name_of(kind, _SMALLER[3 * index % len(_SMALLER)]) for index, kind in enumerate(KINDS)
}


@cache
def parameters_of() -> dict:
    """By name, as the metafile says."""
    models = yaml.safe_load((FOLDER / 'metafile.yml').read_text())['Models']
    return {entry['Name']: entry['Metadata']['Parameters'] for entry in models}


def test_every_backbone_has_every_row():
    assert [path.stem for path in foundation_configs()] == sorted([*ROWS, LIGHT])
    assert len(ROWS) == len(BACKBONES) * len(KINDS) == 99


def test_rows_of_a_kind_differ_in_their_bases_alone():
    """So that a few of them speak for all."""
    bodies = {}
    for name, (kind, backbone) in ROWS.items():
        tree = ast.parse((FOLDER / f'{name}.py').read_text())
        _, bases, *body = tree.body
        head, own = (Path(base).stem for base in ast.literal_eval(bases.value))
        assert own == backbone, name
        large = backbone.endswith('-l') and (BASES / f'{KINDS[kind][1]}-l.py').is_file()
        assert head == KINDS[kind][1] + ('-l' if large else ''), name
        said = '\n'.join(ast.dump(statement) for statement in body)
        assert bodies.setdefault(kind, said) == said, name


@pytest.mark.parametrize('backbone', marked(BACKBONES, ('dinov3-s', 'dinov2-reg4-s', 'eva02-b')))
def test_weights_fit(backbone):
    """timm's names and shapes at full width: nothing is left fresh, what is resized and left out is accounted for."""
    cfg = Config.fromfile(BASES / f'{backbone}.py')
    vit, described = cfg.vit, timm_arch(cfg.vit.arch)
    size = (described['embed_dims'], described['depth'])
    assert size == (cfg.dims, cfg.depth) == SIZES[backbone[-1]]
    pixels = timm.get_pretrained_cfg(vit.arch)
    for ours, theirs in ((cfg.pixels.mean, pixels.mean), (cfg.pixels.std, pixels.std)):
        assert list(ours) == pytest.approx([255 * value for value in theirs])
    with torch.device('meta'):
        model = MODELS.build(dict(vit))
        source = timm.create_model(vit.arch).state_dict()
    _, report = convert_with_report(source, 'timm', model)
    report.demand(1.0)
    assert set(report.taken) == set(model.state_dict())
    said = str(report)
    assert ('patches of 14 x 14 pixels to 16 x 16' in said) == ('patch14' in vit.arch)
    assert ('pos_embed' in said) == (backbone == 'eva02-b'), 'its table is made for 512 pixels'


@pytest.mark.parametrize('kind', marked(KINDS, QUICK))
def test_one_training_step_and_one_prediction(kind):
    """Of the whole model, with the row's optimizer."""
    torch.manual_seed(0)
    model = train_a_step_and_predict(cut(load(FOLDER / f'{SOME[kind]}.py')))
    trained = {name.partition('.')[0] for name, p in model.named_parameters() if p.requires_grad}
    if kind == 'linear':
        assert trained == {'neck', 'decode_head'}
        assert not any(module.training for module in model.backbone.train().blocks.modules())
        (norm,) = model.neck.norms
        assert isinstance(norm, nn.modules.batchnorm._BatchNorm) and norm.num_batches_tracked == 1
        assert list(model.decode_head.state_dict()) == ['conv_seg.weight', 'conv_seg.bias']
    else:
        assert 'backbone' in trained


def test_the_light_adapter_differs_in_the_adapter_alone():
    light, full = (
        load(FOLDER / f'{name}.py') for name in (LIGHT, name_of('upernet-adapter', 'dinov3-s'))
    )
    backbone = light.model.backbone
    assert set(backbone) == {'type', 'norm_cfg', 'vit'}
    assert backbone.vit == full.model.backbone.vit
    assert backbone.norm_cfg == full.model.backbone.norm_cfg
    full.model.backbone = backbone
    assert light.to_dict() == full.to_dict()
    train_a_step_and_predict(cut(light))


@pytest.mark.parametrize('kind', KINDS)
def test_pipelines_read_a_data_set(kind, tmp_path):
    read_a_data_set(FOLDER / f'{SOME[kind]}.py', tmp_path)


@pytest.mark.parametrize('name', marked(ROWS, [SOME[kind] for kind in KINDS if kind not in QUICK]))
def test_builds_at_full_width(name):
    """Without memory for its weights; parameters are the metafile's, and each has its place in the optimizer."""
    kind, backbone = ROWS[name]
    cfg = Config.fromfile(FOLDER / f'{name}.py')
    use_scope(cfg.default_scope)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    parameters = dict(model.named_parameters())
    assert sum(p.numel() for p in parameters.values()) == parameters_of()[name]
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    placed = [p for group in groups for p in group['params']]
    trained = [p for p in parameters.values() if p.requires_grad]
    if kind == 'linear':
        assert len(trained) == 4, 'batch norm and convolution'
        assert not any(p.requires_grad for p in model.backbone.parameters())
        return
    assert len(placed) == len(set(placed)) == len(trained) == len(parameters)
    depth, rate = SIZES[backbone[-1]][1], cfg.optim_wrapper.paramwise_cfg.decay_rate
    rates = {group['lr'] for group in groups}
    expected = [cfg.optim_wrapper.optimizer.lr * rate**layer for layer in range(depth + 2)]
    assert sorted(rates) == pytest.approx(sorted(expected))
