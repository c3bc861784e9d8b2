"""Every shipped config parses, builds, reads data, trains a step and predicts."""

import copy
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from config_utils import (
    CLASSES,
    CONFIGS,
    coco_content,
    shipped_configs,
    write_coco,
    write_label_maps,
)
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS, DefaultScope
from mmengine.structures import InstanceData, PixelData

LAPE = CONFIGS / 'lape'
DTN = CONFIGS / 'dtn'
CUSTOM = CONFIGS / 'custom'
PUBLISHED = dict(  # millions of parameters, LaPE (ICCV 2023) Tables 3 and 4
    mask_rcnn_t=28, mask_rcnn_s=48, upernet_t=36, upernet_s=58, segmenter_t=7
)


@pytest.fixture(autouse=True)
def custom_options(monkeypatch, tmp_path):
    """The options without which configs/custom does not say what to train on."""
    for name in [name for name in os.environ if name.startswith('LAPE_')]:
        monkeypatch.delenv(name)
    monkeypatch.setenv('LAPE_DATA_ROOT', str(tmp_path))
    monkeypatch.setenv('LAPE_CLASSES', ','.join(CLASSES))


def load(path: Path) -> Config:
    """A config without weights to download; its scope becomes the default."""
    cfg = Config.fromfile(path)
    _drop_weights(cfg.model)
    scope = cfg.get('default_scope')
    DefaultScope.get_instance(f'{path.stem}-{id(cfg)}', scope_name=scope)
    import_module(f'{scope}.utils').register_all_modules(init_default_scope=False)
    return cfg


def _drop_weights(node) -> None:
    for child in node.values() if isinstance(node, dict) else node:
        if isinstance(child, (dict, list, tuple)):
            _drop_weights(child)
    if isinstance(node, dict) and 'init_cfg' in node:
        node['init_cfg'] = None


def build(cfg: Config) -> torch.nn.Module:
    model = revert_sync_batchnorm(MODELS.build(cfg.model))
    model.init_weights()
    return model


def millions(path: Path, **model) -> float:
    cfg = load(path)
    cfg.merge_from_dict(dict(model=model))
    return sum(p.numel() for p in MODELS.build(cfg.model).parameters()) / 1e6


@pytest.mark.parametrize('path', shipped_configs(), ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_one_training_step_and_one_prediction(path):
    cfg = load(path)
    model = build(cfg)
    optim_wrapper = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    waiting = {name for name, p in model.named_parameters() if p.requires_grad}
    for name in waiting:
        model.get_parameter(name).register_post_accumulate_grad_hook(
            lambda _, name=name: waiting.discard(name)
        )
    batch = detection_batch(cfg) if cfg.default_scope == 'mmdet' else segmentation_batch(cfg)

    model.train()
    losses = model.train_step(copy.deepcopy(batch), optim_wrapper)
    assert all(torch.isfinite(torch.as_tensor(value)).all() for value in losses.values()), losses
    # Several processes wait for each parameter's gradient (DDP), unless they are told that some have none.
    assert not waiting or cfg.get('find_unused_parameters', False), waiting
    backbone = {name for name in before if name.startswith('backbone.')}
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    # Layer scale, the injectors' gates and the like start a chain of zeros at most one step long.
    assert len(backbone & moved) > 0.6 * len(backbone)
    assert all(torch.isfinite(p).all() for p in model.parameters())

    model.eval()
    (result, _) = model.test_step(batch)
    if cfg.default_scope == 'mmdet':
        boxes = result.pred_instances.bboxes
        assert boxes.shape[1] == 4
        with_mask = cfg.model.get('roi_head', {}).get('mask_head') is not None
        assert ('masks' in result.pred_instances) == with_mask
    else:
        labels = result.pred_sem_seg.data
        assert labels.shape == (1, *result.ori_shape)
        assert labels.min() >= 0
        assert labels.max() < cfg.model.decode_head.num_classes


def detection_batch(cfg: Config) -> dict:
    from mmdet.structures import DetDataSample
    from mmdet.structures.mask import BitmapMasks

    head = cfg.model.get('roi_head', cfg.model).bbox_head
    num_classes = (head[0] if isinstance(head, list) else head).num_classes
    batch = dict(inputs=[], data_samples=[])
    # Two sizes, no multiples of 32 and as small as shows it: what is learned from them does not matter.
    for index, (height, width) in enumerate([(61, 45), (40, 63)]):
        meta = dict(
            img_id=index,
            img_shape=(height, width),
            ori_shape=(height, width),
            scale_factor=(1.0, 1.0),
            img_path='none',
        )
        masks = np.zeros((2, height, width), dtype=np.uint8)
        masks[0, 5:30, 5:25] = 1
        masks[1, 10:38, 15:30] = 1
        sample = DetDataSample(metainfo=meta)
        sample.gt_instances = InstanceData(
            bboxes=torch.tensor([[5.0, 5, 25, 30], [15, 10, 30, 38]]),
            labels=torch.tensor([0, num_classes - 1]),
            masks=BitmapMasks(masks, height, width),
        )
        sample.ignored_instances = InstanceData(
            bboxes=torch.zeros(0, 4), labels=torch.zeros(0, dtype=torch.long)
        )
        batch['inputs'].append(torch.randint(0, 255, (3, height, width), dtype=torch.uint8))
        batch['data_samples'].append(sample)
    return batch


def segmentation_batch(cfg: Config) -> dict:
    from mmseg.structures import SegDataSample

    num_classes = cfg.model.decode_head.num_classes
    # mmseg 1.2.2 fails on ignored pixels under class weights; the demo, which has weights, has none, nor any padding.
    weighted = 'class_weight' in str(cfg.model.decode_head)
    height, width = cfg.model.data_preprocessor.size if weighted else (61, 45)
    batch = dict(inputs=[], data_samples=[])
    for _ in range(2):
        meta = dict(img_shape=(height, width), ori_shape=(height, width), img_path='none')
        labels = torch.randint(0, num_classes, (1, height, width))
        if not weighted:
            labels[:, :9] = 255
        sample = SegDataSample(metainfo=meta, gt_sem_seg=PixelData(data=labels))
        batch['inputs'].append(torch.randint(0, 255, (3, height, width), dtype=torch.uint8))
        batch['data_samples'].append(sample)
    return batch


@pytest.mark.parametrize('path', shipped_configs(), ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_pipelines_read_a_data_set(path, tmp_path):
    cfg = load(path)
    if cfg.default_scope == 'mmdet':
        classes = CLASSES if path.parent == CUSTOM else ('person', 'bicycle', 'car')
        write_coco(tmp_path, coco_content(classes=classes))
        place = dict(ann_file='annotations/train.json', data_prefix=dict(img='train'))
    else:
        suffix = cfg.train_dataloader.dataset.get('img_suffix', '.jpg')
        write_label_maps(tmp_path, suffix=suffix)
        place = dict(data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'))
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        dataset = {**loader.dataset, **place, 'data_root': str(tmp_path)}
        item = DATASETS.build(ConfigDict(dataset))[0]
        height, width = item['inputs'].shape[1:]
        if split == 'train':
            assert (height, width) == tuple(item['data_samples'].img_shape)
        if cfg.default_scope == 'mmdet':
            gt = item['data_samples'].gt_instances
            assert ('masks' in gt) == (cfg.model.type == 'MaskRCNN')
        else:
            assert item['data_samples'].gt_sem_seg.data.max() <= 255


def test_parameter_counts_are_the_published_ones():
    small = dict(vit=dict(arch='deit-small', drop_path_rate=0.2))
    counts = dict(
        mask_rcnn_t=millions(LAPE / 'mask-rcnn_deit-t-adapter_fpn_ms-3x_coco.py'),
        mask_rcnn_s=millions(LAPE / 'mask-rcnn_deit-s-adapter_fpn_ms-3x_coco.py'),
        segmenter_t=millions(LAPE / 'segmenter_deit-t_mask_8xb1-160k_ade20k-512x512.py'),
    )
    upernet = CONFIGS / '_base_' / 'models' / 'upernet_deit-t-adapter.py'
    counts['upernet_t'] = upernet_millions(upernet)
    counts['upernet_s'] = upernet_millions(
        upernet,
        backbone=small,
        decode_head=dict(in_channels=[384] * 4),
        auxiliary_head=dict(in_channels=384),
    )
    assert {name: round(value) for name, value in counts.items()} == PUBLISHED, counts


def upernet_millions(path: Path, **model) -> float:
    cfg = Config.fromfile(path)
    cfg.merge_from_dict(dict(model=model))
    _drop_weights(cfg.model)
    DefaultScope.get_instance(f'upernet-{id(cfg)}', scope_name='mmseg')
    return sum(p.numel() for p in MODELS.build(cfg.model).parameters()) / 1e6


@pytest.mark.parametrize(('size', 'dims', 'heads'), [('t', 192, 3), ('s', 384, 6)])
def test_segmenter_has_the_size_of_upstreams(size, dims, heads):
    """As many parameters as MMSegmentation's Segmenter of these dimensions; LaPE adds 2 x 12 x dim."""
    name = f'segmenter_deit-{size}%s_mask_8xb1-160k_ade20k-512x512.py'
    upstream = load(LAPE / (name % ''))
    upstream.model.backbone = dict(
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
    expected = sum(p.numel() for p in MODELS.build(upstream.model).parameters()) / 1e6
    assert millions(LAPE / (name % '')) == pytest.approx(expected, abs=1e-9)
    lape = expected + 2 * 12 * dims / 1e6
    assert millions(LAPE / (name % '-lape')) == pytest.approx(lape, abs=1e-9)


@pytest.mark.parametrize('size', ['t', 's'])
@pytest.mark.parametrize(
    'name',
    [
        'mask-rcnn_deit-{}-adapter{}_fpn_ms-3x_coco.py',
        'segmenter_deit-{}{}_mask_8xb1-160k_ade20k-512x512.py',
    ],
)
def test_lape_changes_the_joining_alone(name, size):
    default = Config.fromfile(LAPE / name.format(size, '')).to_dict()
    lape = Config.fromfile(LAPE / name.format(size, '-lape')).to_dict()
    for cfg in (default, lape):
        backbone = cfg['model']['backbone']
        cfg['joining'] = backbone.get('vit', backbone).pop('joining')['type']
        cfg.pop('filename', None)
    assert default.pop('joining') == 'mmlape.DefaultJoining'
    assert lape.pop('joining') == 'mmlape.LaPE'
    assert default == lape


def test_weight_decay_spares_what_the_recipe_spares():
    cfg = load(LAPE / 'mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py')
    model = build(cfg)
    groups = build_optim_wrapper(model, cfg.optim_wrapper).optimizer.param_groups
    decay = {id(p): group['weight_decay'] for group in groups for p in group['params']}
    by_name = {name: decay[id(p)] for name, p in model.named_parameters()}
    spared = ('norm', 'bias', 'pos_embed', 'level_embed', 'cls_token')
    for name, value in by_name.items():
        assert value == (0 if any(key in name for key in spared) else 0.05), name
    assert {group['lr'] for group in groups} == {1e-4}
    vit = 'backbone.vit.'
    assert by_name[vit + 'blocks.0.attn.qkv.weight'] == 0.05
    for name in (
        vit + 'blocks.0.norm1.weight',
        vit + 'blocks.0.attn.qkv.bias',
        vit + 'position.joining.norms.11.weight',
        vit + 'position.embedding.pos_embed',
        'backbone.level_embed',
    ):
        assert by_name[name] == 0, name


@pytest.mark.parametrize(
    'name',
    [
        'mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py',
        'segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512.py',
    ],
)
def test_weights_arrive(name, tmp_path):
    """The ``init_cfg`` of a config, given a file of DeiT's layout, survives the init of the rest."""
    import timm

    deit = timm.create_model('deit_tiny_patch16_224').state_dict()
    deit = {name: torch.randn_like(value) for name, value in deit.items()}
    torch.save(dict(model=deit), tmp_path / 'deit.pth')
    path = LAPE / name
    config = Config.fromfile(path).model.backbone
    cfg = load(path)
    vit = cfg.model.backbone.get('vit', cfg.model.backbone)
    vit.init_cfg = {
        **config.get('vit', config).init_cfg,
        'checkpoint': str(tmp_path / 'deit.pth'),
    }
    model = build(cfg)
    vit = getattr(model.backbone, 'vit', model.backbone)
    for key in ('patch_embed.proj.weight', 'blocks.0.attn.qkv.weight', 'blocks.11.norm2.bias'):
        assert torch.equal(vit.state_dict()[key], deit[key]), key
    if vit.num_prefix_tokens:
        assert torch.equal(vit.cls_token, deit['cls_token'])
    norms = vit.position.joining.norms
    assert all(torch.equal(norm.weight, torch.ones(192)) for norm in norms)


def test_recipes():
    """Facts of the published recipes that a wrong base file would change."""
    cfg = Config.fromfile(LAPE / 'mask-rcnn_deit-s-adapter-lape_fpn_ms-3x_coco.py')
    assert cfg.train_cfg.max_epochs == cfg.param_scheduler[1].end == 36
    assert cfg.param_scheduler[1].milestones == [27, 33]
    vit = cfg.model.backbone.vit
    assert vit.drop_path_rate == 0.2
    assert [i for i, size in enumerate(vit.window_size) if size is None] == [2, 5, 8, 11]
    assert cfg.model.backbone.norm_cfg.type == 'SyncBN'
    resize, crop = cfg.train_pipeline[3].transforms
    assert resize[0].scales[0] == (480, 1333)
    assert resize[0].scales[-1] == (800, 1333)
    assert len(resize[0].scales) == 11
    assert crop[1].crop_size == (384, 600)
    assert cfg.train_pipeline[4].crop_size == (1024, 1024)
    assert cfg.auto_scale_lr.base_batch_size == 16

    cfg = Config.fromfile(LAPE / 'segmenter_deit-s-lape_mask_8xb1-160k_ade20k-512x512.py')
    optimizer = cfg.optim_wrapper.optimizer
    assert (optimizer.type, optimizer.lr, optimizer.weight_decay) == ('SGD', 1e-3, 0.0)
    assert cfg.train_cfg.max_iters == cfg.param_scheduler[0].end == 160000
    assert cfg.train_dataloader.batch_size * 8 == cfg.auto_scale_lr.base_batch_size
    assert cfg.model.test_cfg.stride == (480, 480)
    assert cfg.model.data_preprocessor.mean == [123.675, 116.28, 103.53]


def test_metafiles_name_the_configs():
    import yaml

    for folder in (LAPE, DTN):
        meta = yaml.safe_load((folder / 'metafile.yml').read_text())
        paths = [entry['Config'] for entry in meta['Models']]
        assert sorted(paths) == sorted(
            f'configs/{folder.name}/{p.name}' for p in folder.glob('*.py')
        )
        readme = (folder / 'README.md').read_text()
        for entry in meta['Models']:
            assert entry['Name'] == Path(entry['Config']).stem
            assert Path(entry['Config']).name in readme
            docstring = (CONFIGS.parent / entry['Config']).read_text().split('"""')[1]
            for result in entry.get('Results', []):
                for value in result['Metrics'].values():
                    assert str(value) in docstring, 'the published figure, in the config too'
