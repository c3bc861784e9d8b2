_base_ = ['../_base_/datasets/digit-scenes_semantic.py', '../_base_/demo_runtime.py']

default_scope = 'mmseg'
max_iters = 600
dims = 96

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(96, 96),
        test_cfg=dict(size=(96, 96)),
    ),
    backbone=dict(
        type='mmlape.VisionTransformer',
        arch=dict(embed_dims=dims, depth=6, num_heads=3, mlp_ratio=4),
        img_size=96,
        patch_size=8,
        joining=dict(type='mmlape.LaPE'),
    ),
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_channels=dims,
        channels=dims,
        embed_dims=dims,
        num_classes=11,
        num_layers=2,
        num_heads=3,
        drop_path_rate=0.0,
        dropout_ratio=0.0,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.01),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
