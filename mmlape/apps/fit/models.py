"""The models of ``mmlape fit``: a network, its head and its weights by one name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mmlape.checks import did_you_mean

BOXES = ('instance', 'detect')


@dataclass(frozen=True)
class FitModel:
    """A row of the table.

    Attributes:
        config: The shipped config that it starts from, without ``.py``.
        tasks: What it can be trained for; the first is the richer one.
        good_for: In a few words.
        size: Side in pixels of training images (boxes: the longer side of an image; label maps: of a crop).
        lr: Learning rate of AdamW for 2 to 8 images per step.
        parameters: In millions, with 3 classes.
        memory: MB that one image of this size saves for the backward pass.
        least_batch: Images per step that it needs: 2 where a batch norm sees a map of one pixel.
        changes: What differs from the config, merged into ``model``.
    """

    config: str
    tasks: tuple[str, ...]
    good_for: str
    size: int
    parameters: float
    memory: int
    lr: float = 1e-4
    least_batch: int = 1
    changes: Mapping[str, Any] = field(default_factory=dict)


# The demo's detector finds few digits in small images; own images have more and larger things.
_MORE_BOXES = dict(
    rpn_head=dict(anchor_generator=dict(scales=[8])),
    train_cfg=dict(rpn_proposal=dict(nms_pre=1000, max_per_img=300)),
    test_cfg=dict(rpn=dict(nms_pre=1000, max_per_img=300), rcnn=dict(max_per_img=100)),
)
# Its classes are balanced for digits on an empty ground.
_EVEN = dict(loss_decode=dict(class_weight=None))

MODELS = {
    'lape-adapter': FitModel(
        'lape/mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco', BOXES,
        'boxes and masks with ImageNet weights: LaPE ViT-Adapter-Ti, Mask R-CNN', 640, 27.7, 1600,
    ),
    'dtn-pvt': FitModel(
        'dtn/retinanet_pvt-t-dtn_fpn_1x_coco', ('detect',),
        'boxes in large images: PVT-Tiny with DTN, RetinaNet', 640, 21.4, 490,
    ),
    'swin': FitModel(
        'swin/mask-rcnn_swin-t-lape_fpn_ms-3x_coco', BOXES,
        'boxes and masks in large images: Swin-T with LaPE, Mask R-CNN', 640, 47.7, 1400,
    ),
    'dinov3': FitModel(
        'foundation/mask-rcnn_dinov3-s_sfp_lsj-100e_coco', BOXES,
        'boxes and masks from few images: DINOv3-S, simple pyramid, Mask R-CNN', 640, 43.9, 1100,
    ),
    'micro-adapter': FitModel(
        'demo/mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes', BOXES,
        'a first look on a CPU, from random weights: micro LaPE ViT-Adapter, Mask R-CNN',
        320, 2.3, 110, lr=1e-3, changes=_MORE_BOXES,
    ),
    'segmenter': FitModel(
        'lape/segmenter_deit-t-lape_mask_8xb1-160k_ade20k-512x512', ('segment',),
        'label maps, the cheapest with ImageNet weights: LaPE ViT-Ti, Segmenter', 512, 6.7, 200,
    ),
    'upernet': FitModel(
        'lape/upernet_deit-t-adapter-lape_8xb2-160k_ade20k-512x512', ('segment',),
        'label maps with fine detail: LaPE ViT-Adapter-Ti, UPerNet', 512, 36.0, 1100, least_batch=2,
    ),
    'mask2former': FitModel(
        'foundation/mask2former_dinov3-s_8xb2-40k_ade20k-512x512', ('segment',),
        'label maps from few images: DINOv3-S, Mask2Former', 512, 44.7, 1800,
    ),
    'micro-segmenter': FitModel(
        'demo/segmenter_vit-micro-adapter-lape_mask_digit-scenes', ('segment',),
        'a first look on a CPU, from random weights: micro LaPE ViT-Adapter, Segmenter',
        224, 1.5, 120, lr=2e-3, changes=dict(decode_head=_EVEN, auxiliary_head=_EVEN),
    ),
}  # fmt: skip
DEFAULTS = dict(detect='lape-adapter', instance='lape-adapter', segment='segmenter')


def known_model(name: str) -> str:
    """``name`` if it is a row's, else ValueError."""
    if name not in MODELS:
        raise ValueError(
            f'there is no model {name!r}{did_you_mean(name, MODELS)} (`mmlape fit --list` shows {", ".join(MODELS)})'
        )
    return name


def find_model(name: str | None, task: str) -> FitModel:
    """A row by its name, or the default of a task.

    Raises:
        ValueError: If there is no such row, or it is for another task.
    """
    name = DEFAULTS[task] if name is None else known_model(name)
    if task not in MODELS[name].tasks:
        fitting = ', '.join(key for key, row in MODELS.items() if task in row.tasks)
        raise ValueError(
            f'--model {name} is for {", ".join(MODELS[name].tasks)}, and the data are for {task}: use {fitting}'
        )
    return MODELS[name]


def listing() -> str:
    """The table as text."""
    width = max(map(len, MODELS))
    lines = [f'{"model":<{width}}  parameters  memory  tasks']
    for name, row in MODELS.items():
        tasks = ', '.join(row.tasks)
        lines.append(f'{name:<{width}}  {row.parameters:6.1f} M  {row.memory:4d} MB  {tasks}')
        lines.append(f'{"":<{width}}  {row.good_for}')
    note = 'memory: saved for the backward pass per image, at the default --size'
    return '\n'.join([*lines, note])
