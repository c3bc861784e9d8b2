"""EoMT on a micro ViT with LaPE, semantic segmentation of the digit scenes, from scratch; see configs/eomt/README.md.

Unlike the paper's, this ViT is not pre-trained. Queries only name what its patches tell apart: a stem of convolutions,
and less weight on masks, which are learned long before names, make that possible in a training of minutes.
"""

_base_ = ['../_base_/datasets/digit-scenes_semantic.py', '../_base_/demo_runtime.py']

default_scope = 'mmseg'
max_iters = 3000
warmup = 100
num_classes = 11

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
        type='mmlape.EoMT',
        num_classes=num_classes,
        num_queries=12,
        num_blocks=2,
        vit=dict(
            type='mmlape.VisionTransformer',
            arch=dict(embed_dims=128, depth=5, num_heads=4, mlp_ratio=3),
            img_size=96,
            stem=dict(type='mmlape.ConvStem', num_convs=4),
            joining=dict(type='mmlape.LaPE'),
            layer_scale=True,
        ),
    ),
    decode_head=dict(
        type='mmlape.EoMTSegHead',
        num_classes=num_classes,
        mask_weight=2.0,
        dice_weight=2.0,
        train_cfg=dict(num_points=400),
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='whole'),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1.5e-3, weight_decay=0.05, fused=True),
    constructor='mmlape.MergedGroupsOptimizerConstructor',
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', power=0.9, by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-6),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=200)
visualizer = dict(type='SegLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
custom_hooks = [dict(type='mmlape.MaskAnnealingHook')]
