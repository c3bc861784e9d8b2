_base_ = [
    '../_base_/models/retinanet_fpn.py',
    '../_base_/datasets/digit-scenes_detection.py',
    '../_base_/demo_detection.py',
]

max_iters = 1000
dims = [48, 96, 160, 192]
channels = 96

model = dict(
    # DTN as published: in stages 1 to 3, with 4, 4 and 5 heads and pooling sizes 4, 2 and 1.
    backbone=dict(
        type='mmlape.PyramidVisionTransformer',
        arch=dict(
            embed_dims=dims,
            depths=[1, 2, 2, 1],
            num_heads=[1, 2, 5, 6],
            mlp_ratios=[4, 4, 4, 4],
            sr_ratios=[8, 4, 2, 1],
        ),
        img_size=96,
        norm_cfg=dict(type='mmlape.DTN'),
    ),
    neck=dict(in_channels=dims, out_channels=channels, num_outs=3),
    bbox_head=dict(
        num_classes=10,
        in_channels=channels,
        stacked_convs=2,
        feat_channels=channels,
        norm_cfg=dict(type='GN', num_groups=8),
        anchor_generator=dict(octave_base_scale=3, strides=[8, 16, 32]),
        # Larger than upstream's 0.01 everywhere: classifiers that start near zero first learn "digit or background",
        # and a training of minutes ends before the digits have come apart.
        init_cfg=dict(
            type='Kaiming',
            layer='Conv2d',
            override=[
                dict(type='Normal', name='retina_cls', std=0.05, bias_prob=0.01),
                dict(type='Normal', name='retina_reg', std=0.01),
            ],
        ),
    ),
    test_cfg=dict(nms_pre=200, max_per_img=30),
)

optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
# For tools/analysis_tools/dtn_ratios.py.
custom_hooks = [dict(type='mmlape.DTNRatioHook', interval=10)]
