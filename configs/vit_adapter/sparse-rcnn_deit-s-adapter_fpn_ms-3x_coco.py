"""Sparse R-CNN, ViT-Adapter-S. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 48.1.
"""

_base_ = [
    '../_base_/models/sparse-rcnn_fpn.py',
    '../_base_/models/vit-adapter_deit-s.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

num_proposals = 300
model = dict(
    backbone=_base_.vit_adapter,
    neck=dict(in_channels=[384] * 4),
    rpn_head=dict(num_proposals=num_proposals),
    test_cfg=dict(rcnn=dict(max_per_img=num_proposals)),
)
optim_wrapper = dict(
    paramwise_cfg=dict(custom_keys=dict(rpn_head=dict(lr_mult=0.25, decay_mult=0.002))),
    clip_grad=dict(max_norm=1, norm_type=2),
)
