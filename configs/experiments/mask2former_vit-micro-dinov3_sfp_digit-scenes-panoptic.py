"""Mask2Former, panoptic segmentation of the digit scenes, on the plain micro ViT of DINOv3's parts.

Its backbone starts from ``segformer_vit-micro-dinov3_sfp_digit-scenes``: train that first.
See configs/panoptic/README.md.
"""

_base_ = [
    '../_base_/foundation/mask2former.py',
    '../_base_/datasets/digit-scenes_panoptic.py',
    '../_base_/demo_runtime.py',
    '../_base_/models/demo_vit-micro-dinov3.py',
]

default_scope = 'mmdet'
max_iters = 2000
warmup = 100
num_things, num_stuff = 10, 1
dims = _base_.micro_pyramid.out_channels
load_from = 'work_dirs/segformer_vit-micro-dinov3_sfp_digit-scenes/iter_600.pth'
# One layer of pixel decoder and three of queries, all narrow.
wide = dict(_base_.mask2former.transformer_decoder.layer_cfg.ffn_cfg, embed_dims=dims)
wide.update(feedforward_channels=2 * dims)
heads = dict(embed_dims=dims, num_heads=4, batch_first=True)
sampled = dict(heads, num_levels=3, num_points=4)
encoder = dict(num_layers=1, layer_cfg=dict(self_attn_cfg=sampled, ffn_cfg=wide))
layer = dict(self_attn_cfg=heads, cross_attn_cfg=heads, ffn_cfg=wide)
sine = dict(num_feats=dims // 2, normalize=True)

model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        pad_seg=True,
        seg_pad_value=255,
    ),
    backbone=_base_.micro_vit,
    neck=_base_.micro_pyramid,
    panoptic_head=dict(
        _base_.mask2former,
        type='mmlape.Mask2FormerHead',
        in_channels=[dims] * 4,
        feat_channels=dims,
        out_channels=dims,
        num_things_classes=num_things,
        num_stuff_classes=num_stuff,
        num_queries=12,
        pixel_decoder=dict(
            _base_.mask2former.pixel_decoder, encoder=encoder, positional_encoding=sine
        ),
        transformer_decoder=dict(
            return_intermediate=True, num_layers=3, layer_cfg=layer, init_cfg=None
        ),
        positional_encoding=sine,
        loss_cls=dict(_base_.loss_cls, class_weight=[1.0] * (num_things + num_stuff) + [0.1]),
    ),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_things,
        num_stuff_classes=num_stuff,
        loss_panoptic=None,
        init_cfg=None,
    ),
    train_cfg=dict(_base_.matching, num_points=1024),
    test_cfg=dict(
        panoptic_on=True,
        semantic_on=False,
        instance_on=False,
        object_mask_thr=0.5,
        iou_thr=0.6,
        filter_low_score=True,
    ),
)
del wide, heads, sampled, encoder, layer, sine

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    constructor='mmlape.MergedGroupsOptimizerConstructor',
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        # Its weights are trained already.
        custom_keys=dict(backbone=dict(lr_mult=0.3)),
    ),
    clip_grad=dict(max_norm=5.0),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=400)
train_dataloader = dict(batch_size=4)
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
