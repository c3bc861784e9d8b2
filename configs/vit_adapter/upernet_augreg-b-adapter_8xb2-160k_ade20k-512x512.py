"""UPerNet, AugReg ViT-B in ViT-Adapter-B. ADE20K, 160K iterations, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): mIoU 51.9.
"""

_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/vit_adapter/augreg-b.py',
    '../_base_/datasets/ade20k_multiple-of-32.py',
    '../_base_/vit_adapter/runtime_160k.py',
]

model = dict(
    data_preprocessor=dict(mean=[127.5] * 3, std=[127.5] * 3),
    backbone=_base_.vit_adapter,
    decode_head=dict(in_channels=[_base_.dims] * 4),
    auxiliary_head=dict(in_channels=_base_.dims),
)
spared = ('level_embed', 'pos_embed', 'norm', 'bias')
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys=dict({name: dict(decay_mult=0.0) for name in spared}, head=dict(lr_mult=10.0))
    ),
)
del spared
auto_scale_lr = dict(enable=False, base_batch_size=16)
