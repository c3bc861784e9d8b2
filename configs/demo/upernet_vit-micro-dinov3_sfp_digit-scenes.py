# UPerNet, of the foundation models' heads, on a plain ViT of DINOv3's parts; data and losses are the Segmenter's.
_base_ = [
    './segmenter_vit-micro-adapter-lape_mask_digit-scenes.py',
    '../_base_/models/demo_vit-micro-dinov3.py',
]

# All maps are used.
find_unused_parameters = False
max_iters = 600
warmup = max_iters // 10
channels = _base_.micro_pyramid.out_channels
head = dict(
    in_channels=channels,
    channels=channels,
    num_classes=11,
    norm_cfg=dict(type='BN'),
    dropout_ratio=0.0,
    loss_decode=_base_.model.decode_head.loss_decode,
    # Wider than upstream's 0.01, for the same reason as in the Segmenter's heads.
    init_cfg=dict(type='Normal', std=0.1, override=dict(name='conv_seg')),
)

model = dict(
    backbone=dict(_base_.micro_vit, _delete_=True),
    neck=dict(_base_.micro_pyramid, _delete_=True),
    decode_head=dict(
        head,
        _delete_=True,
        type='UPerHead',
        in_index=[0, 1, 2, 3],
        in_channels=[channels] * 4,
        pool_scales=(1, 2, 3),
    ),
    auxiliary_head=dict(
        head,
        _delete_=True,
        type='FCNHead',
        in_index=1,
        num_convs=1,
        concat_input=False,
    ),
)
del head

optim_wrapper = dict(
    optimizer=dict(lr=1e-3),
    paramwise_cfg=dict(custom_keys=dict(_delete_=True)),
)
param_scheduler = [
    dict(_base_.param_scheduler[0], end=warmup),
    dict(_base_.param_scheduler[1], begin=warmup, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
