"""Mask2Former for things and stuff, BEiTv2-L in ViT-Adapter-L. COCO, 265,500 iterations, 16 GPUs x 1 image.

Published (ViT-Adapter, ICLR 2023, README of its code): PQ 58.4, box AP 52.9, mask AP 48.9.
"""

_base_ = [
    '../_base_/foundation/mask2former_panoptic.py',
    '../_base_/vit_adapter/beitv2-l_windows.py',
]

max_iters, interval = 265500, 5000
model = dict(
    data_preprocessor=dict(
        mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], batch_augments=[]
    ),
    backbone=_base_.vit_adapter,
    panoptic_head=dict(in_channels=[_base_.dims] * 4, num_queries=100),
)

# DETR's augmentation: half of the images are cropped at a small scale first.
resize = dict(
    type='RandomChoiceResize',
    scales=[(short, 1333) for short in range(480, 801, 32)],
    keep_ratio=True,
)
crop = dict(
    type='RandomCrop', crop_type='absolute_range', crop_size=(384, 600), allow_negative_crop=True
)
smaller = dict(resize, scales=[(400, 1333), (500, 1333), (600, 1333)])
train_pipeline = [
    *_base_.train_pipeline[:2],
    dict(type='RandomFlip', prob=0.5),
    dict(type='RandomChoice', transforms=[[resize], [smaller, crop, resize]]),
    dict(type='PackDetInputs'),
]
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (1333, 800)
train_dataloader = dict(
    batch_size=1,
    sampler=dict(type='InfiniteSampler'),
    dataset=dict(pipeline=train_pipeline),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
del resize, crop, smaller

optim_wrapper = dict(paramwise_cfg=dict(_delete_=True, decay_rate=0.9))
param_scheduler = [
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_iters,
        by_epoch=False,
        milestones=[191750, 236000],
        gamma=0.1,
    ),
]
train_cfg = dict(
    _delete_=True,
    type='IterBasedTrainLoop',
    max_iters=max_iters,
    val_interval=interval,
    dynamic_intervals=[(max_iters // interval * interval + 1, max_iters)],
)
default_hooks = dict(checkpoint=dict(by_epoch=False, interval=interval))
log_processor = dict(by_epoch=False)
custom_hooks = [
    dict(
        type='EMAHook',
        ema_type='ExpMomentumEMA',
        momentum=0.0001,
        update_buffers=True,
        priority=49,
    )
]
