"""UPerNet on a plain ViT, by EVA-02-B's recipe: four of its maps, of which all but the third are resized.

A row adds the backbone and channels. 60,000 iterations, 4 GPUs x 8 images.
"""

_base_ = [
    '../models/upernet.py',
    '../datasets/ade20k.py',
    '../schedules/schedule_160k_layer-decay.py',
    '../default_runtime_mmseg.py',
]

max_iters = 60000
model = dict(
    backbone=dict(drop_path_rate=0.15),
    neck=dict(type='Feature2Pyramid', rescales=[4, 2, 1, 0.5], norm_cfg=_base_.norm_cfg),
)
optim_wrapper = dict(optimizer=dict(weight_decay=0.05), paramwise_cfg=dict(decay_rate=0.85))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, begin=1500, end=max_iters, by_epoch=False),
]
train_dataloader = dict(batch_size=8)
train_cfg = dict(max_iters=max_iters, val_interval=10000)
default_hooks = dict(checkpoint=dict(interval=10000))
auto_scale_lr = dict(base_batch_size=32)
