"""36 epochs over COCO: ``schedule_1x_swin`` with the drops at epochs 27 and 33."""

_base_ = './schedule_1x_swin.py'

train_cfg = dict(max_epochs=36)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=36, by_epoch=True, milestones=[27, 33], gamma=0.1),
]
