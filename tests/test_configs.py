"""Every shipped config parses, builds, reads data, trains a step and predicts."""

import copy
import re
from importlib import import_module
from pathlib import Path

import pytest
import torch
from config_utils import (
    CONFIGS,
    coco_content,
    cut,
    shipped_configs,
    use_scope,
    write_coco,
    write_label_maps,
    write_panoptic,
)
from mmdet.datasets import CocoPanopticDataset
from mmdet.testing import demo_mm_inputs
from mmengine.config import Config, ConfigDict
from mmengine.model import revert_sync_batchnorm
from mmengine.optim import build_optim_wrapper
from mmengine.registry import DATASETS, MODELS
from mmengine.structures import PixelData

from mmlape.backbones.pvt import PVT_ARCHS, PVTV2_ARCHS
from mmlape.backbones.swin import SWIN_ARCHS
from mmlape.checkpoints.strangers import config_of_stranger
from mmlape.config_text import as_plain
from mmlape.shipped import read_config
from mmlape.training import check_config

pytestmark = pytest.mark.usefixtures('cheap_values')
LAPE = CONFIGS / 'lape'
PYRAMIDS = {
    'mmlape.PyramidVisionTransformer': PVT_ARCHS,
    'mmlape.PyramidVisionTransformerV2': PVTV2_ARCHS,
    'mmlape.SwinTransformer': SWIN_ARCHS,
}
# Mask R-CNN on ViT-Adapter and on Swin comes with two schedules.
TWINS = {
    path: path.with_name(path.name.replace('_1x_', '_ms-3x_'))
    for folder in (LAPE, CONFIGS / 'swin')
    for path in sorted(folder.glob('mask-rcnn_*_1x_*.py'))
}


def load(path: Path) -> Config:
    """A config without weights to download; its scope becomes the default."""
    cfg = read_config(path)
    _drop_weights(cfg.model)
    scope = cfg.get('default_scope', 'mmdet')
    use_scope(scope)
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


# Those with a smaller relative, or one with more parts, among the fast tests.
RELATED = (
    r'scale_dinov3|deit-b|cascade|deit-s-adapter|upernet_deit-s|swin-s|swin-t(_|-lape)|pvtv2-b|'
    r'eomt_(deit|dinov2)-|eomt_dinov3-[bl]_8xb2|(rcnn|retinanet)_pvt-s|segmenter_deit-s|upernet_deit-t-adapter_|'
    r'gfl_dinov3-s|mask2former_dinov3-s_sfp|rcnn_(pvt-t|pvt-t-lape|pvt-t-dtn|deit-t-adapter)_fpn|retinanet_pvt-t_fpn|'
    r'segmenter_deit-t_mask'
)


def trained_configs() -> list:
    """All but those whose model and optimizer another one has; some are slow."""
    return [
        pytest.param(
            path,
            id=f'{path.parent.name}/{path.stem}',
            marks=[pytest.mark.slow] if re.search(RELATED, path.name) else [],
        )
        for path in shipped_configs()
        if path not in TWINS
    ]


@pytest.mark.parametrize('path', trained_configs())
def test_one_training_step_and_one_prediction(path):
    cfg = load(path)
    # Those with a foundation model name its width: its weights and parameters are tested with the rows of these.
    wide = re.search('dinov[23]-.(?!-adapter)', path.stem)
    train_a_step_and_predict(cut(cfg) if wide else cfg)


def train_a_step_and_predict(cfg: Config) -> torch.nn.Module:
    """Whatever is to be trained moves, and what comes out is a prediction; returns the model."""
    check_config(cfg)  # as `mmlape train` does
    # Its checkpoints predict without --trust, also after a share.
    found = config_of_stranger(as_plain(cfg).pretty_text)
    assert found.model.type == cfg.model.type
    take_less_work(cfg)
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
    # Several processes wait for each parameter's gradient (DDP), unless they are told, at a price, that some have none.
    assert bool(waiting) == cfg.get('find_unused_parameters', False), waiting
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    backbone = {name for name in trained if name.startswith('backbone.')}
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    # Layer scale, the injectors' gates and the like start a chain of zeros at most one step long.
    assert len(backbone & moved) >= 0.6 * len(backbone)
    assert moved <= trained
    assert all(torch.isfinite(p).all() for p in model.parameters())

    model.eval()
    (result, _) = model.test_step(batch)
    if is_panoptic(cfg):
        head = cfg.model.panoptic_head
        labels = result.pred_panoptic_seg.sem_seg % 1000
        assert labels.shape == (1, *result.ori_shape)
        assert labels.max() <= head.num_things_classes + head.num_stuff_classes
    elif cfg.default_scope == 'mmdet':
        boxes = result.pred_instances.bboxes
        assert boxes.shape[1] == 4
        assert ('masks' in result.pred_instances) == predicts_masks(cfg)
    else:
        labels = result.pred_sem_seg.data
        assert labels.shape == (1, *result.ori_shape)
        assert labels.min() >= 0
        assert labels.max() < cfg.model.decode_head.num_classes
    return model


def predicts_masks(cfg: Config) -> bool:
    return (
        'panoptic_head' in cfg.model or cfg.model.get('roi_head', {}).get('mask_head') is not None
    )


def is_panoptic(cfg: Config) -> bool:
    return cfg.model.get('panoptic_head', {}).get('num_stuff_classes', 0) > 0


def take_less_work(cfg: Config) -> None:
    """Crops no larger than the images, few proposals, narrow heads of upstream: else a step takes up to a minute."""
    model = cfg.model
    archs = PYRAMIDS.get(model.backbone.type)
    if archs and isinstance(
        model.backbone.arch, str
    ):  # layers of a stage are alike, in Swin every other one
        arch = archs[model.backbone.arch]
        model.backbone.arch = dict(arch, depths=[min(2, depth) for depth in arch['depths']])
    for augment in model.data_preprocessor.get('batch_augments', []):
        augment.size = (64, 64)
    if cfg.default_scope == 'mmseg':
        height, width = model.data_preprocessor.size
        model.data_preprocessor.size = (min(height, 96), min(width, 96))
        for head in (model.decode_head, model.get('auxiliary_head') or {}):
            if head.get('type') in ('UPerHead', 'FCNHead') and head.get('num_convs', 1):
                head.channels = 32
            take_fewer_queries(head)
    elif 'panoptic_head' in model:
        take_fewer_queries(model.panoptic_head)
    elif 'encoder' in model:  # the DETR family; DDQ needs two layers
        model.num_queries, model.encoder.num_layers, model.decoder.num_layers = 10, 1, 2
    elif 'num_proposals' in model.get('rpn_head', {}):  # Sparse R-CNN
        model.rpn_head.num_proposals = 10
    elif 'roi_head' in model:
        heads = model.roi_head.bbox_head
        for head in heads if isinstance(heads, list) else [heads]:
            head.fc_out_channels = 64
        model.train_cfg.rpn_proposal.max_per_img = model.test_cfg.rpn.max_per_img = 30
        stages = model.train_cfg.rcnn
        for stage in stages if isinstance(stages, list) else [stages]:
            stage.sampler.num = 32


def take_fewer_queries(head: ConfigDict) -> None:
    """Of Mask2Former: one layer in place of nine, and few queries."""
    if 'Mask2Former' in head.get('type', ''):
        head.num_queries = 10
        head.pixel_decoder.encoder.num_layers = head.transformer_decoder.num_layers = 1


def detection_batch(cfg: Config) -> dict:
    """Two sizes, no multiples of 32 and as small as shows it: what is learned from them does not matter."""
    if 'panoptic_head' in cfg.model:
        num_classes = cfg.model.panoptic_head.num_things_classes
    else:
        head = cfg.model.get('roi_head', cfg.model).bbox_head
        num_classes = (head[0] if isinstance(head, list) else head).num_classes
    sizes = [(3, 61, 45), (3, 40, 63)]
    options = dict(num_items=[2, 2], num_classes=num_classes, with_mask=True)
    stuff = is_panoptic(cfg) or 'semantic_head' in cfg.model.get('roi_head', {})
    batch = demo_mm_inputs(2, sizes, with_semantic=stuff, **options)
    for sample in batch['data_samples'] if is_panoptic(cfg) else ():
        sample.gt_sem_seg.sem_seg[:, :9] = num_classes  # the first of stuff
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


# One for each head and data set of a folder: a row of another backbone has the same data (test_base_configs.py).
READ = {(p.parent, *re.sub('_[^_]+', '', p.stem, count=1).split('_')): p for p in shipped_configs()}


@pytest.mark.parametrize('path', READ.values(), ids=lambda p: f'{p.parent.name}/{p.stem}')
def test_pipelines_read_a_data_set(path, tmp_path):
    read_a_data_set(path, tmp_path)


def read_a_data_set(path: Path, tmp_path: Path) -> None:
    """The first image of each split comes out of its pipeline."""
    cfg = load(path)
    if is_panoptic(cfg):
        names = cfg.train_dataloader.dataset.get('metainfo', {}).get(
            'classes', CocoPanopticDataset.METAINFO['classes']
        )
        write_panoptic(tmp_path, [*names[:2], names[-1]])
        place = dict(
            ann_file='annotations/train.json',
            data_prefix=dict(img='train', seg='annotations/train'),
        )
    elif cfg.default_scope == 'mmdet':
        write_coco(tmp_path, coco_content(classes=('person', 'bicycle', 'car')))
        place = dict(ann_file='annotations/train.json', data_prefix=dict(img='train'))
    else:
        suffix = cfg.train_dataloader.dataset.get('img_suffix', '.jpg')
        write_label_maps(tmp_path, suffix=suffix)
        place = dict(
            data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
            img_suffix=suffix,
            seg_map_suffix='.png',
            ann_file='',
        )
    for split in ('train', 'val', 'test'):
        loader = cfg[f'{split}_dataloader']
        dataset = {**loader.dataset, **place, 'data_root': str(tmp_path)}
        for step in dataset['pipeline']:
            # Upstream's needs panopticapi.
            if step['type'] == 'LoadPanopticAnnotations':
                step['type'] = 'mmlape.LoadPanopticMap'
        item = DATASETS.build(ConfigDict(dataset))[0]
        height, width = item['inputs'].shape[1:]
        if split == 'train':
            assert (height, width) == tuple(item['data_samples'].img_shape)
        if cfg.default_scope == 'mmdet':
            gt = item['data_samples'].gt_instances
            assert ('gt_sem_seg' in item['data_samples']) == is_panoptic(cfg)
            assert ('masks' in gt) == predicts_masks(cfg)
        else:
            assert item['data_samples'].gt_sem_seg.data.max() <= 255
