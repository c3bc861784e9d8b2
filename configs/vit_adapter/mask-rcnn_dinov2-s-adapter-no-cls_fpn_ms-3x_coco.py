"""Mask R-CNN, DINOv2 ViT-S without class token in ViT-Adapter-S. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 51.5, mask AP 45.6.
"""

_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/vit_adapter/dinov2-s_windows.py',
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
    paramwise_cfg=dict(_delete_=True, decay_rate=0.7),
)
