# UPerNet on the demo's ViT-Adapter, around a ViT of DINOv3's parts.
_base_ = [
    './segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
    '../_base_/models/demo_vit-micro-dinov3.py',
]

find_unused_parameters = False
max_iters = 500
model = dict(
    backbone=dict(vit=dict(_base_.micro_vit, _delete_=True), vit_feature='per_stage'),
    neck=None,
    decode_head=dict(
        _delete_=True,
        type='UPerHead',
        in_index=[0, 1, 2, 3],
        in_channels=[96] * 4,
        channels=64,
        pool_scales=(1, 2, 3, 6),
        num_classes=11,
        dropout_ratio=0.0,
        norm_cfg=dict(type='BN'),
        align_corners=False,
        loss_decode=_base_.model.decode_head.loss_decode,
    ),
    auxiliary_head=None,
)
# No SegmenterMaskTransformerHead, whose classes' norm has a rate of its own.
optim_wrapper = dict(optimizer=dict(lr=2e-3), paramwise_cfg=dict(custom_keys=dict(_delete_=True)))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.04, by_epoch=False, begin=0, end=50),
    dict(type='CosineAnnealingLR', by_epoch=False, begin=50, end=max_iters, eta_min=1e-5),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
