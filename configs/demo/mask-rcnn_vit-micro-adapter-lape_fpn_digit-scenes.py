_base_ = [
    '../_base_/models/mask-rcnn_fpn.py',
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_instance.py',
    '../_base_/demo_detection.py',
]

max_iters = 1100
warmup = 80
channels = 64
strides = [4, 8, 16, 32]

# Fewer channels, levels, samples and proposals: what digits in images of 96 pixels need. torchvision's RoIAlign gives
# the bits of MMCV's; on a CPU it takes a third of the time forward.
model = dict(
    backbone={{_base_.micro_backbone}},
    neck=dict(in_channels=[{{_base_.dims}}] * 4, out_channels=channels, num_outs=4),
    rpn_head=dict(
        in_channels=channels,
        feat_channels=channels,
        anchor_generator=dict(scales=[5], strides=strides),
    ),
    roi_head=dict(
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1, use_torchvision=True),
            out_channels=channels,
            finest_scale=56,
        ),
        bbox_head=dict(
            in_channels=channels, fc_out_channels=256, num_classes=10, reg_class_agnostic=True
        ),
        mask_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1, use_torchvision=True),
            out_channels=channels,
            finest_scale=56,
        ),
        mask_head=dict(
            num_convs=2,
            in_channels=channels,
            conv_out_channels=channels,
            num_classes=10,
            class_agnostic=True,
        ),
    ),
    train_cfg=dict(
        rpn=dict(assigner=dict(pos_iou_thr=0.6), sampler=dict(num=64)),
        rpn_proposal=dict(nms_pre=200, max_per_img=64),
        rcnn=dict(sampler=dict(num=32, pos_fraction=0.5)),
    ),
    test_cfg=dict(rpn=dict(nms_pre=200, max_per_img=50), rcnn=dict(max_per_img=30)),
)

# 1100 steps of 4 images teach more than 700 of 8, in less time.
train_dataloader = dict(batch_size=4)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=max_iters)
