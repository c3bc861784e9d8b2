"""Mask R-CNN, DINOv2 ViT-L without class token in ViT-Adapter-L. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 55.3, mask AP 49.0.
"""

_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/vit_adapter/dinov2-l_windows.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=_base_.vit_adapter,
    neck=dict(in_channels=[_base_.dims] * 4),
)
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.65),
)
