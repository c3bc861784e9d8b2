"""DINO-DETR on a micro ViT-Adapter with LaPE: boxes of the digit scenes, from scratch, on one core of a CPU."""

_base_ = [
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_detection.py',
    '../_base_/demo_detection.py',
]

max_iters = 900
warmup = max_iters // 20
levels = 3

# MMDetection's decoders encode boxes for 256 channels, so these cannot be fewer.
model = dict(
    type='DINO',
    num_queries=40,
    num_feature_levels=levels,
    with_box_refine=True,
    as_two_stage=True,
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        mean=[123.675, 116.28, 103.53],
        std=[58.395, 57.12, 57.375],
        bgr_to_rgb=True,
        pad_size_divisor=1,
    ),
    backbone=dict(_base_.micro_backbone, out_indices=[1, 2, 3]),
    neck=dict(
        type='ChannelMapper',
        in_channels=[_base_.dims] * levels,
        kernel_size=1,
        out_channels=256,
        act_cfg=None,
        norm_cfg=dict(type='GN', num_groups=32),
        num_outs=levels,
    ),
    encoder=dict(
        num_layers=1,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=256, num_levels=levels, dropout=0.0),
            ffn_cfg=dict(embed_dims=256, feedforward_channels=512, ffn_drop=0.0),
        ),
    ),
    decoder=dict(
        num_layers=3,
        return_intermediate=True,
        layer_cfg=dict(
            self_attn_cfg=dict(embed_dims=256, num_heads=8, dropout=0.0),
            cross_attn_cfg=dict(embed_dims=256, num_levels=levels, dropout=0.0),
            ffn_cfg=dict(embed_dims=256, feedforward_channels=512, ffn_drop=0.0),
        ),
        post_norm_cfg=None,
    ),
    positional_encoding=dict(num_feats=128, normalize=True, offset=0.0, temperature=20),
    bbox_head=dict(
        type='DINOHead',
        num_classes=10,
        sync_cls_avg_factor=True,
        loss_cls=dict(type='FocalLoss', use_sigmoid=True, gamma=2.0, alpha=0.25, loss_weight=1.0),
        loss_bbox=dict(type='L1Loss', loss_weight=5.0),
        loss_iou=dict(type='GIoULoss', loss_weight=2.0),
    ),
    dn_cfg=dict(
        label_noise_scale=0.5,
        box_noise_scale=1.0,
        group_cfg=dict(dynamic=True, num_groups=None, num_dn_queries=20),
    ),
    train_cfg=dict(
        assigner=dict(
            type='HungarianAssigner',
            match_costs=[
                dict(type='FocalLossCost', weight=2.0),
                dict(type='BBoxL1Cost', weight=5.0, box_format='xywh'),
                dict(type='IoUCost', iou_mode='giou', weight=2.0),
            ],
        )
    ),
    test_cfg=dict(max_per_img=30),
)

train_dataloader = dict(batch_size=4)
optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=150)
# Deformable attention by mmlape's operator for CPUs.
default_hooks = dict(cpu=dict(type='mmlape.CpuHook'))
