# A ViT Segmenter of 4 layers and 64 channels on the digit cells, from scratch. Position: learned, joined by default;
# tools/experiments/position.py replaces both, see docs/evidence.md#position-where-it-decides.
_base_ = [
    '../_base_/datasets/digit-cells_semantic.py',
    '../_base_/demo_runtime.py',
]

default_scope = 'mmseg'
max_iters = 300
image_size = 32
dims = 64
num_classes = 13
# What weights at the classifiers' usual tiny scale do in a run this short: digits are found, but not named.
classifier_std = 0.2

model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        mean=[90, 90, 90],
        std=[60, 60, 60],
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(image_size, image_size),
        test_cfg=dict(size=(image_size, image_size)),
    ),
    backbone=dict(
        type='mmlape.VisionTransformer',
        arch=dict(embed_dims=dims, depth=4, num_heads=4, mlp_ratio=4),
        img_size=image_size,
        patch_size=4,
        with_cls_token=False,
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(type='mmlape.DefaultJoining'),
        attention_position=None,
    ),
    # Neither head may know where a token is: attention without position, and a convolution of one cell.
    decode_head=dict(
        type='SegmenterMaskTransformerHead',
        in_channels=dims,
        channels=dims,
        embed_dims=dims,
        num_classes=num_classes,
        num_layers=1,
        num_heads=4,
        drop_path_rate=0.0,
        dropout_ratio=0.0,
        init_std=classifier_std,
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
    ),
    auxiliary_head=dict(
        type='FCNHead',
        in_channels=dims,
        channels=dims,
        num_convs=0,
        concat_input=False,
        dropout_ratio=0.0,
        num_classes=num_classes,
        init_cfg=dict(type='Normal', std=0.1, override=dict(name='conv_seg')),
        loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=0.4),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-3, betas=(0.9, 0.98), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        custom_keys={
            'decode_head.mask_norm': dict(lr_mult=10.0, decay_mult=0.0),
            'backbone.position': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
        },
    ),
    clip_grad=dict(max_norm=1.0),
)
warm_up = max_iters // 20
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warm_up),
    dict(
        type='CosineAnnealingLR', by_epoch=False, begin=warm_up, end=max_iters, eta_min_ratio=0.01
    ),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
visualizer = dict(type='SegLocalVisualizer', vis_backends=[])
# The result is a number; weights are not kept.
default_hooks = dict(checkpoint=None)
