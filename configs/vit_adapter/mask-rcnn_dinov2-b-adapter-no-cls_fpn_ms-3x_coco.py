"""Mask R-CNN, DINOv2 ViT-B without class token in ViT-Adapter-B. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 54.1, mask AP 47.8.
"""

_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/vit_adapter/dinov2-b_windows.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    backbone=_base_.vit_adapter,
    neck=dict(in_channels=[_base_.dims] * 4),
)
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.6),
)
