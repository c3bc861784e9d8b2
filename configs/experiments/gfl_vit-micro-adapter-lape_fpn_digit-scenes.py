"""GFL on the micro ViT-Adapter with LaPE, digit scenes, from scratch: see configs/detectors/README.md."""

_base_ = [
    '../_base_/models/gfl_fpn.py',
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_detection.py',
    '../_base_/demo_detection.py',
]

max_iters = 900
warmup = 60
channels = 64

model = dict(
    backbone=dict(_base_.micro_backbone, out_indices=[1, 2, 3]),
    neck=dict(in_channels=[_base_.dims] * 3, out_channels=channels, start_level=0, num_outs=3),
    bbox_head=dict(
        num_classes=10,
        in_channels=channels,
        stacked_convs=2,
        feat_channels=channels,
        norm_cfg=dict(type='GN', num_groups=8),
        anchor_generator=dict(octave_base_scale=3, strides=[8, 16, 32]),
        # Larger than upstream's 0.01, as for the demo's RetinaNet.
        init_cfg=dict(
            type='Normal',
            layer='Conv2d',
            std=0.03,
            override=dict(type='Normal', name='gfl_cls', std=0.05, bias_prob=0.01),
        ),
    ),
    test_cfg=dict(nms_pre=200, max_per_img=30),
)

param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=300)
