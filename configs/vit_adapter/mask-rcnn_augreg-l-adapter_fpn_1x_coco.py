"""Mask R-CNN, AugReg ViT-L in ViT-Adapter-L. COCO, 12 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 48.7, mask AP 43.3.
"""

_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/vit_adapter/augreg-l_windows.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=_base_.vit_adapter,
    neck=dict(in_channels=[_base_.dims] * 4),
)
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.8),
)
