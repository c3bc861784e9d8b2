"""The configs of configs/lape: published sizes and recipes, weights that arrive, and what LaPE changes."""

import json
import subprocess
import sys

import pytest
import torch
from config_utils import CONFIGS, write_label_maps
from docs_pages import read_page
from mmengine.config import Config
from mmengine.dataset import Compose
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS
from test_configs import build, load

FOLDER = CONFIGS / 'lape'
COCO_3X = 'mask-rcnn_deit-{}-adapter{}_fpn_ms-3x_coco.py'
UPERNET = 'upernet_deit-{}-adapter{}_8xb2-160k_ade20k-512x512.py'
SEGMENTER = 'segmenter_deit-{}{}_mask_8xb1-160k_ade20k-512x512.py'
CASCADE = 'cascade-mask-rcnn_deit-s-adapter{}_fpn_ms-3x_coco.py'
RETINANET = 'retinanet_deit-s-adapter{}_fpn_1x_coco.py'
LAPE_ROWS = sorted(path.name for path in FOLDER.glob('*-lape*.py'))
DIMS = {'deit-tiny': 192, 'deit-small': 384, 'deit-base': 768}


def count(cfg: Config) -> int:
    if (
        cfg.model.type == 'EncoderDecoder'
    ):  # Segmenter's head reads values of tensors as it is built
        model = MODELS.build(cfg.model)
    else:
        with torch.device('meta'):
            model = MODELS.build(cfg.model)
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ('name', 'published'),
    [
        *((COCO_3X.format(size, ''), m) for size, m in (('t', 28), ('s', 48), ('b', 120))),
        (CASCADE.format(''), 86),
        *((UPERNET.format(size, ''), m) for size, m in (('t', 36), ('s', 58), ('b', 134))),
        (SEGMENTER.format('t', ''), 7),
        (SEGMENTER.format('s', ''), 26),  # published: 27; upstream's own has 26.0, see below
    ],
)
def test_parameters_are_as_published(name, published):
    """In millions: LaPE (ICCV 2023) Tables 3 and 4; ViT-Adapter (ICLR 2023) Tables 1 to 3."""
    assert round(count(load(FOLDER / name)) / 1e6) == published


@pytest.mark.parametrize(('size', 'dims', 'heads'), [('t', 192, 3), ('s', 384, 6), ('b', 768, 12)])
def test_segmenter_has_the_size_of_upstreams(size, dims, heads):
    """As many parameters as MMSegmentation's Segmenter of these dimensions."""
    cfg = load(FOLDER / SEGMENTER.format(size, ''))
    ours = count(cfg)
    cfg.model.backbone = dict(
        type='VisionTransformer',
        img_size=(512, 512),
        patch_size=16,
        embed_dims=dims,
        num_layers=12,
        num_heads=heads,
        patch_bias=True,
        final_norm=True,
        with_cls_token=True,
    )
    assert ours == count(cfg)


def test_every_row_has_both_positions():
    both = {name.replace('-lape', '') for name in LAPE_ROWS}
    assert both == {path.name for path in FOLDER.glob('*.py')} - set(LAPE_ROWS)
    assert len(both) == 6 + 3 + 3 + 2


@pytest.mark.parametrize('name', LAPE_ROWS)
def test_lape_changes_the_joining_alone(name):
    default, lape = (load(FOLDER / n) for n in (name.replace('-lape', ''), name))
    vits = [cfg.model.backbone.get('vit', cfg.model.backbone) for cfg in (default, lape)]
    with torch.device('meta'):
        sizes = [sum(p.numel() for p in MODELS.build(dict(vit)).parameters()) for vit in vits]
    assert sizes[1] - sizes[0] == 2 * 12 * DIMS[vits[0].arch]
    joinings = [vit.pop('joining').type for vit in vits]
    assert joinings == ['mmlape.DefaultJoining', 'mmlape.LaPE']
    default, lape = ({**cfg.to_dict(), 'filename': None} for cfg in (default, lape))
    assert default == lape


@pytest.mark.parametrize('name', [COCO_3X.format('t', '-lape'), RETINANET.format('-lape')])
def test_weight_decay_spares_what_the_recipe_spares(name):
    cfg = load(FOLDER / name)
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    by_name = settings_by_name(model, cfg)
    spared = ('norm', 'bias', 'pos_embed', 'level_embed', 'cls_token')
    for key, (lr, decay) in by_name.items():
        assert decay == (0 if any(part in key for part in spared) else 0.05), key
        assert lr == 1e-4
    vit = 'backbone.vit.'
    assert by_name[vit + 'blocks.0.attn.qkv.weight'] == (1e-4, 0.05)
    for key in (
        vit + 'blocks.0.norm1.weight',
        vit + 'blocks.0.attn.qkv.bias',
        vit + 'position.joining.norms.11.weight',
        vit + 'position.embedding.pos_embed',
        'backbone.level_embed',
    ):
        assert by_name[key] == (1e-4, 0), key


def settings_by_name(model, cfg) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay of every parameter."""
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    found = {id(p): (g['lr'], g['weight_decay']) for g in groups for p in g['params']}
    return {name: found[id(p)] for name, p in model.named_parameters()}


@pytest.mark.parametrize('name', ['test_pipeline', 'tta_pipeline'])
def test_upernet_evaluates_at_multiples_of_32(name, tmp_path):
    """Images and flips of them; label maps stay as they are in their files."""
    write_label_maps(tmp_path, count=1, size=(97, 71))
    cfg = load(FOLDER / UPERNET.format('t', ''))
    item = Compose(cfg[name])(
        dict(
            img_path=str(tmp_path / 'images' / 'train' / '0.jpg'),
            seg_map_path=str(tmp_path / 'annotations' / 'train' / '0.png'),
            reduce_zero_label=True,
            seg_fields=[],
        )
    )
    images = item['inputs'] if name == 'tta_pipeline' else [item['inputs']]
    assert len(images) == (12 if name == 'tta_pipeline' else 1)
    assert all(side % 32 == 0 for image in images for side in image.shape[1:])
    samples = item['data_samples'] if name == 'tta_pipeline' else [item['data_samples']]
    assert {tuple(sample.gt_sem_seg.shape) for sample in samples} == {(71, 97)}
    assert {tuple(sample.ori_shape) for sample in samples} == {(71, 97)}


def test_upernets_learning_rates_fall_with_depth():
    """0.95 per layer; 14 depths: what stands before the 12 layers, they, and all else."""
    cfg = load(FOLDER / UPERNET.format('t', '-lape'))
    with torch.device('meta'):
        model = MODELS.build(cfg.model)
    settings = settings_by_name(model, cfg)
    vit = 'backbone.vit.'
    for name, steps, decay in (
        ('decode_head.conv_seg.weight', 0, 0.01),
        ('backbone.spm.fc1.weight', 0, 0.01),
        (vit + 'blocks.11.attn.qkv.weight', 1, 0.01),
        (vit + 'blocks.0.attn.qkv.weight', 12, 0.01),
        (vit + 'blocks.0.attn.qkv.bias', 12, 0),
        (vit + 'position.joining.norms.0.weight', 12, 0),
        (vit + 'patch_embed.proj.weight', 13, 0.01),
        (vit + 'position.embedding.pos_embed', 13, 0),
    ):
        assert settings[name] == (pytest.approx(1.2e-4 * 0.95**steps), decay), name


@pytest.mark.parametrize('name', [COCO_3X.format('t', '-lape'), SEGMENTER.format('t', '-lape')])
def test_weights_arrive(name, tmp_path):
    """The ``init_cfg`` of a config, given a file of DeiT's layout, survives the init of the rest."""
    import timm

    deit = timm.create_model('deit_tiny_patch16_224').state_dict()
    deit = {key: torch.randn_like(value) for key, value in deit.items()}
    torch.save(dict(model=deit), tmp_path / 'deit.pth')
    vit = vit_of_initialised(name, checkpoint=str(tmp_path / 'deit.pth'))
    for key in ('patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'blocks.11.norm2.bias'):
        assert torch.equal(vit.state_dict()[key], deit[key]), key
    if vit.num_prefix_tokens:
        assert torch.equal(vit.cls_token, deit['cls_token'])
    norms = vit.position.joining.norms
    assert all(torch.equal(norm.weight, torch.ones(192)) for norm in norms)


@pytest.mark.parametrize('name', [COCO_3X.format('t', '-lape'), SEGMENTER.format('t', '-lape')])
def test_a_vit_pre_trained_with_lape_arrives(name, tmp_path):
    """The option that the README gives: its position norms come along."""
    trained = MODELS.build(
        dict(type='mmlape.VisionTransformer', arch='deit-tiny', joining=dict(type='mmlape.LaPE'))
    )
    state = {key: torch.randn_like(value) for key, value in trained.state_dict().items()}
    torch.save(state, tmp_path / 'lape.pth')
    place = 'model.backbone.init_cfg.' if 'segmenter' in name else 'model.backbone.vit.init_cfg.'
    assert f'{place}source=mmlape' in (FOLDER / 'README.md').read_text()
    vit = vit_of_initialised(name, source='mmlape', checkpoint=str(tmp_path / 'lape.pth'))
    loaded = vit.state_dict()
    joining = [key for key in state if 'norms' in key]
    assert len(joining) == 24
    for key in ('blocks.0.attn.qkv.weight', *joining):
        assert torch.equal(loaded[key], state[key]), key


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
