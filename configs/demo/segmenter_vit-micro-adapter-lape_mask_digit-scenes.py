_base_ = [
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_semantic.py',
    '../_base_/demo_runtime.py',
]

default_scope = 'mmseg'
max_iters = 1200
# Nine of ten pixels are background.
class_weight = [0.4, *[1.0] * 10]

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
    backbone=dict(vit_feature='per_stage'),
    # Dilated convolutions over all four maps, at stride 4: every pixel sees a whole digit, which a backbone that has
    # trained for minutes does not give it.
    neck=dict(
        type='JPU',
        in_channels=({{_base_.dims}},) * 4,
        mid_channels=48,
        start_level=0,
        dilations=(1, 2, 4, 8),
        norm_cfg=dict(type='BN'),
    ),
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_index=3,  # 0 to 2 are maps of the backbone
        in_channels=192,
        channels=64,
        embed_dims=64,
        num_classes=11,
        num_layers=2,
        num_heads=1,
        drop_path_rate=0.0,
        dropout_ratio=0.0,
        loss_decode=dict(
            type='CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=1.0,
            class_weight=class_weight,
        ),
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_index=3,
        in_channels=192,
        channels=64,
        num_convs=1,
        concat_input=False,
        num_classes=11,
        norm_cfg=dict(type='BN'),
        loss_decode=dict(
            type='CrossEntropyLoss',
            use_sigmoid=False,
            loss_weight=0.5,
            class_weight=class_weight,
        ),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1.5e-3, betas=(0.9, 0.98), weight_decay=0.05),
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=1.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=60),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=60, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
