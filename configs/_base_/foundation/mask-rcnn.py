"""Mask R-CNN on a plain ViT by ViTDet's recipe: simple feature pyramid, LayerNorm in all heads, large-scale jitter.

A row adds the backbone and its channels. 100 epochs, 64 images per step; tested with a long side of 1024.
"""

_base_ = [
    '../models/mask-rcnn_fpn.py',
    '../datasets/coco_instance_lsj.py',
    '../schedules/schedule_1x.py',
    '../default_runtime_mmdet.py',
]

max_epochs = 100
norm_cfg = dict(type='mmlape.LN2d', eps=1e-6)
model = dict(
    data_preprocessor=dict(
        batch_augments=[dict(type='BatchFixedSizePad', size=(1024, 1024), pad_mask=True)]
    ),
    backbone=dict(drop_path_rate=0.1),
    neck=dict(_delete_=True, type='mmlape.SimpleFeaturePyramid', out_channels=256, num_outs=5),
    rpn_head=dict(num_convs=2),
    roi_head=dict(
        bbox_head=dict(type='Shared4Conv1FCBBoxHead', conv_out_channels=256, norm_cfg=norm_cfg),
        mask_head=dict(norm_cfg=norm_cfg),
    ),
)
optim_wrapper = dict(
    optimizer=dict(weight_decay=0.1),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.7),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=250),
    dict(
        type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[89, 96], gamma=0.1
    ),
]
train_dataloader = dict(batch_size=8)
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=(1024, 1024)),
    *_base_.test_pipeline[2:],
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
train_cfg = dict(max_epochs=max_epochs, val_interval=5)
auto_scale_lr = dict(base_batch_size=64)
