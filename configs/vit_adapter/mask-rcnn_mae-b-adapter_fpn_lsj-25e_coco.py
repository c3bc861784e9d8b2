"""Mask R-CNN, MAE ViT-B in ViT-Adapter-B, norms in all heads. COCO, 25 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 50.3, mask AP 44.7.
"""

_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/vit_adapter/mae-b_windows.py',
    '../_base_/datasets/coco_instance_lsj-range.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]

max_epochs = 25
norm_cfg = dict(type='SyncBN', requires_grad=True)
model = dict(
    data_preprocessor=dict(
        batch_augments=[dict(type='BatchFixedSizePad', size=_base_.image_size, pad_mask=True)]
    ),
    backbone=_base_.vit_adapter,
    neck=dict(in_channels=[_base_.dims] * 4, norm_cfg=norm_cfg),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', conv_out_channels=256, norm_cfg=norm_cfg),
        mask_head=dict(norm_cfg=norm_cfg),
    ),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=2000),
    dict(type='CosineAnnealingLR', eta_min_ratio=0.01, T_max=max_epochs, by_epoch=True),
]
train_cfg = dict(max_epochs=max_epochs)
