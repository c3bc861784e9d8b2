"""Deformable DETR in two stages with refined boxes, PVT-Small with DTN. COCO, 50 epochs, 16 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/deformable-detr.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/schedule_detr.py',
    '../_base_/default_runtime_mmdet.py',
]

max_epochs = 50
model = dict(
    backbone=dict(
        type='mmlape.PyramidVisionTransformer',
        arch='small',
        out_indices=[1, 2, 3],
        drop_path_rate=0.1,
        norm_cfg=dict(type='mmlape.DTN'),
        joining=dict(type='mmlape.DefaultJoining'),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='pvt',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth',
        ),
    ),
    neck=dict(in_channels=[128, 320, 512]),
)
optim_wrapper = dict(
    optimizer=dict(lr=2e-4),
    paramwise_cfg=dict(decay_rate=0.85, custom_keys={'sampling_offsets': dict(lr_mult=0.1)}),
)
param_scheduler = [
    dict(type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[40], gamma=0.1),
]
train_cfg = dict(max_epochs=max_epochs)
auto_scale_lr = dict(base_batch_size=32)
