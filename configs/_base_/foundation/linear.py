"""A linear head on a frozen ViT, by DINOv3's recipe: dropout, batch norm and one 1 x 1 convolution on the last map.

A row adds the backbone and its channels. 40,000 iterations, 8 GPUs x 2 images.
"""

_base_ = ['../datasets/ade20k.py', '../default_runtime_mmseg.py']

max_iters = 40000
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    neck=dict(
        type='mmlape.MapNorms', norm_cfg=dict(type='SyncBN', requires_grad=True), drop_rate=0.1
    ),
    decode_head=dict(
        type='FCNHead',
        in_index=0,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.0,
        num_classes=150,
        align_corners=False,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, betas=(0.9, 0.999), weight_decay=1e-3),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='CosineAnnealingLR', eta_min=0.0, begin=0, end=max_iters, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=5000))
auto_scale_lr = dict(enable=False, base_batch_size=16)
