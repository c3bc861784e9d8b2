"""Tiny data sets, a micro network and scopes for tests that run real configs."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from copy import deepcopy
from functools import partial
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest
import torch
from mmengine.config import Config
from mmengine.optim import build_optim_wrapper
from mmengine.registry import MODELS, DefaultScope
from PIL import Image
from torch.utils.flop_counter import FlopCounterMode

from mmlape.backbones.timm_archs import timm_arch

REPO = Path(__file__).resolve().parents[2]
WIDTH, DEPTH, HEADS = 48, 4, 3  # of a cut ViT
CONFIGS = REPO / 'configs'
CLASSES = ('red cell', 'white cell', "crow's foot")
COCO_PIPELINE = [dict(type='LoadAnnotations', with_bbox=True)]


def shipped_configs() -> list[Path]:
    """Every detector and segmentor that a user can run, but for the rows of foundation models and ViT-Adapter's zoo."""
    others = (
        '_base_',
        'imagenet',
        'cifar',
        'ablations',
        'listops',
        'dino',
        'foundation',
        'vit_adapter',
    )
    return sorted(p for p in CONFIGS.glob('*/*.py') if p.parent.name not in others)


def _in_folder(name: str) -> list[Path]:
    return sorted(CONFIGS.glob(f'{name}/*.py'))


# Too many rows to train a step of each at full width.
foundation_configs = partial(_in_folder, 'foundation')
vit_adapter_configs = partial(_in_folder, 'vit_adapter')
# MMPretrain's: classifiers, bases of several rows of a table, and pre-training without labels.
classifier_configs = partial(_in_folder, 'imagenet')
cifar_configs = partial(_in_folder, 'cifar')
listops_configs = partial(_in_folder, 'listops')
dino_configs = partial(_in_folder, 'dino')


def marked(names: Iterable[str], fast: Collection[str]) -> list:
    """Names as parameters, of which all but the fast ones are for the slow tests."""
    return [pytest.param(name, marks=() if name in fast else pytest.mark.slow) for name in names]


def multiply_adds(part: Callable, *shape: int, dtype: torch.dtype = torch.float32) -> int:
    """Of one input of this shape; parts without memory (``meta``) are enough."""
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        part(torch.zeros(shape, dtype=dtype, device='meta'))
    return counter.get_total_flops() // 2


def use_scope(name: str) -> None:
    """Make ``name`` the default scope. A name used before would change nothing, and an ``id`` may come twice."""
    DefaultScope.get_instance(f'{name}-{uuid4().hex}', scope_name=name)


def read_classifier(path: Path) -> Config:
    """A config of MMPretrain, in whose scope its model can be built."""
    from mmpretrain.utils import register_all_modules

    register_all_modules(init_default_scope=False)
    use_scope('mmpretrain')
    cfg = Config.fromfile(path)
    cfg.model.data_preprocessor = cfg.data_preprocessor
    return cfg


def train_a_step(cfg: Config, batch: dict) -> tuple[torch.nn.Module, set[str], dict[str, float]]:
    """The model of a config after a step, the parameters that it did not move, and every parameter's weight decay."""
    model = MODELS.build(cfg.model)
    model.init_weights()
    optimizer = build_optim_wrapper(model, cfg.optim_wrapper)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    losses = model.train().train_step(deepcopy(batch), optimizer)
    assert torch.isfinite(losses['loss'])
    named = dict(model.named_parameters())
    groups = optimizer.optimizer.param_groups
    decay = {id(p): group['weight_decay'] for group in groups for p in group['params']}
    unmoved = {name for name in named if torch.equal(before[name], named[name])}
    return model.eval(), unmoved, {name: decay[id(p)] for name, p in named.items()}


def write_image(path: Path, size: tuple[int, int], seed: int = 0) -> None:
    """An RGB image of noise; ``size`` is (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)


def coco_content(count: int = 4, size: tuple[int, int] = (97, 71), classes=CLASSES) -> dict:
    """A COCO annotation object: ``count`` images, one box with a polygon per class on each."""
    width, height = size
    images, boxes = [], []
    for index in range(count):
        images.append(dict(id=index + 1, file_name=f'{index}.jpg', width=width, height=height))
        for label in range(len(classes)):
            x, y, w, h = 5 + 20 * label, 7 + 5 * index, 21.5, 18
            boxes.append(
                dict(
                    id=len(boxes) + 1,
                    image_id=index + 1,
                    category_id=10 * (label + 1),
                    bbox=[x, y, w, h],
                    area=w * h,
                    iscrowd=0,
                    segmentation=[[x, y, x + w, y, x + w, y + h, x, y + h]],
                )
            )
    categories = [dict(id=10 * (i + 1), name=name) for i, name in enumerate(classes)]
    return dict(images=images, annotations=boxes, categories=categories)


def write_coco(root: Path, content: dict | None = None, split: str = 'train') -> dict:
    """Write ``root/annotations/<split>.json`` and ``root/<split>/*.jpg``; return the content."""
    content = coco_content() if content is None else content
    for image in content['images']:
        write_image(
            root / split / image['file_name'], (image['width'], image['height']), image['id']
        )
    path = root / 'annotations' / f'{split}.json'
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))
    return content


def write_panoptic(root: Path, classes: Collection[str]) -> None:
    """The same with ``root/annotations/train/*.png``: the first two classes are things, the third is stuff."""
    content = write_coco(root, coco_content(classes=list(classes)[:3]))
    for label, category in enumerate(content['categories']):
        category['isthing'] = int(label < 2)
    by_image = []
    for image in content['images']:
        ids = np.zeros((image['height'], image['width']), dtype=np.uint8)
        segments = [each for each in content['annotations'] if each['image_id'] == image['id']]
        for each in segments:
            x, y, w, h = map(int, each['bbox'])
            ids[y : y + h, x : x + w] = each['id']
        name = f'{image["id"] - 1}.png'
        write_label_map(root / 'annotations/train' / name, np.stack([ids, ids * 0, ids * 0], -1))
        by_image.append(dict(image_id=image['id'], file_name=name, segments_info=segments))
    path = root / 'annotations' / 'train.json'
    path.write_text(json.dumps(dict(content, annotations=by_image)))


def write_label_maps(
    root: Path,
    split: str = 'train',
    count: int = 4,
    size: tuple[int, int] = (97, 71),
    suffix: str = '.jpg',
) -> None:
    """Write ``root/images/<split>/*<suffix>`` and ``root/annotations/<split>/*.png``."""
    for index in range(count):
        write_image(root / 'images' / split / f'{index}{suffix}', size, index)
        labels = np.zeros(size[::-1], dtype=np.uint8)
        labels[10:40, 10:50] = 1
        labels[30:60, 40:80] = 2
        labels[:5] = 255
        write_label_map(root / 'annotations' / split / f'{index}.png', labels)


def write_label_map(path: Path, labels: np.ndarray) -> None:
    """Write class indices, or colours, as a PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(labels).save(path)


def coco_dataset(root: Path, **options) -> dict:
    """Config of a data set that :func:`write_coco` has written."""
    return dict(
        type='CocoDataset',
        data_root=str(root),
        ann_file='annotations/train.json',
        data_prefix=dict(img='train'),
        metainfo=dict(classes=CLASSES),
        filter_cfg=dict(filter_empty_gt=True, min_size=32),
        pipeline=COCO_PIPELINE,
        **options,
    )


def cut(cfg: Config) -> Config:
    """Four layers of 48 channels instead of the backbone, and heads to fit."""
    model, dims = cfg.model, cfg.dims
    for part in ('neck', 'decode_head', 'auxiliary_head', 'panoptic_head'):
        for key, value in (model.get(part) or {}).items():
            if value in (dims, [dims] * 4):
                model[part][key] = [WIDTH] * 4 if isinstance(value, list) else WIDTH
    backbone = model.backbone
    vit = backbone.get('vit', backbone)  # inside an adapter or not
    sizes = dict(embed_dims=WIDTH, depth=DEPTH, num_heads=HEADS)
    vit.arch = dict(timm_arch(vit.arch), **sizes)
    vit.drop_path_rate = 0.0
    for key, value in (('window_size', [2, None] * 2), ('out_indices', [0, 1, 2, 3])):
        if key in vit:
            vit[key] = value
    if 'frozen_stages' in vit:
        vit.frozen_stages = DEPTH
    if backbone.type == 'mmlape.ViTAdapter':
        backbone.update(conv_inplanes=8, deform_num_heads=HEADS)
        backbone.interaction_indexes = [[layer, layer] for layer in range(DEPTH)]
    for augment in model.data_preprocessor.get('batch_augments', []):
        augment.size = (64, 64)
    return cfg
