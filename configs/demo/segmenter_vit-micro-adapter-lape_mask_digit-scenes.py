_base_ = [
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_semantic.py',
    '../_base_/demo_runtime.py',
]

default_scope = 'mmseg'
# Only the first of the neck's maps is used, so several processes must not wait for gradients of the others.
find_unused_parameters = True
max_iters = 1500
warmup = max_iters // 10
# Both heads stand on the finest map of the FPN.
shared = dict(
    in_index=0,
    in_channels={{_base_.dims}},
    num_classes=11,
    dropout_ratio=0.0,
    loss_decode=dict(
        type='CrossEntropyLoss',
        use_sigmoid=False,
        loss_weight=1.0,
        # Nine of ten pixels are background.
        class_weight=[0.4, *[1.0] * 10],
    ),
)

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
    backbone={{_base_.micro_backbone}},
    neck=dict(
        type='FPN',
        in_channels=[{{_base_.dims}}] * 4,
        out_channels={{_base_.dims}},
        num_outs=4,
        norm_cfg=dict(type='BN'),
        act_cfg=dict(type='ReLU'),
    ),
    # Upstream's initial values are for fine-tuning: with classifiers this close to zero (0.02 and 0.01) all digits look
    # alike to the features for as long as this demo trains. It then finds digits and does not tell them apart.
    decode_head=dict(
        shared,
        type='SegmenterMaskTransformerHead',
        channels=64,
        embed_dims=64,
        num_layers=1,
        num_heads=1,
        drop_path_rate=0.0,
        init_std=0.2,
    ),
    auxiliary_head=dict(
        shared,
        type='FCNHead',
        channels={{_base_.dims}},
        num_convs=0,
        concat_input=False,
        init_cfg=dict(type='Normal', std=0.1, override=dict(name='conv_seg')),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
del shared

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=4e-3, weight_decay=0.05, fused=True),
    constructor='mmlape.MergedGroupsOptimizerConstructor',
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        # The layer norm over the classes scales the logits: it has far to go.
        custom_keys={'mask_norm': dict(lr_mult=10.0, decay_mult=0.0)},
    ),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.04, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
