"""Sparse R-CNN on the micro ViT-Adapter with LaPE, digit scenes, from scratch: see configs/detectors/README.md."""

_base_ = [
    '../_base_/models/sparse-rcnn_fpn.py',
    '../_base_/models/demo_vit-micro-adapter-lape.py',
    '../_base_/datasets/digit-scenes_detection.py',
    '../_base_/demo_detection.py',
]

max_iters = 1500
warmup = 150
channels = 64
num_stages = 3
num_proposals = 30
stage = dict(
    _base_.model.roi_head.bbox_head[0],
    num_classes=10,
    num_heads=4,
    feedforward_channels=256,
    in_channels=channels,
    dynamic_conv_cfg=dict(
        _base_.model.roi_head.bbox_head[0].dynamic_conv_cfg,
        in_channels=channels,
        feat_channels=16,
        out_channels=channels,
    ),
)

model = dict(
    backbone=_base_.micro_backbone,
    neck=dict(in_channels=[_base_.dims] * 4, out_channels=channels),
    rpn_head=dict(num_proposals=num_proposals, proposal_feature_channel=channels),
    roi_head=dict(
        num_stages=num_stages,
        stage_loss_weights=[1] * num_stages,
        proposal_feature_channel=channels,
        bbox_roi_extractor=dict(
            roi_layer=dict(sampling_ratio=1, use_torchvision=True),
            out_channels=channels,
            # Boxes of 14 to 28 pixels are read from the map of stride 8.
            finest_scale=14,
        ),
        bbox_head=[stage] * num_stages,
    ),
    train_cfg=dict(rcnn=[_base_.model.train_cfg.rcnn[0]] * num_stages),
    test_cfg=dict(rcnn=dict(max_per_img=num_proposals)),
)
del stage

optim_wrapper = dict(optimizer=dict(lr=6e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=warmup, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=300)
