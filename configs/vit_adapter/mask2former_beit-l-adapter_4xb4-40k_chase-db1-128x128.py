"""Mask2Former, BEiT-L in ViT-Adapter-L. CHASE DB1, 40K iterations, 4 GPUs x 4 images.

Published (ViT-Adapter, ICLR 2023, README of its code): mDice 89.4.
"""

_base_ = [
    '../_base_/vit_adapter/mask2former_narrow.py',
    '../_base_/vit_adapter/beit-l.py',
    '../_base_/datasets/chase-db1.py',
    '../_base_/vit_adapter/runtime_40k.py',
]

custom_imports = dict(imports=['mmlape', 'mmdet.models'])
crop_size = _base_.crop_size
num_classes = _base_.num_classes
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(_base_.vit_adapter, vit=dict(_base_.vit_adapter.vit, img_size=crop_size)),
    decode_head=dict(
        in_channels=[_base_.dims] * 4,
        num_classes=num_classes,
        loss_cls=dict(class_weight=[1.0] * num_classes + [0.1]),
    ),
    test_cfg=dict(crop_size=crop_size, stride=_base_.stride),
)
default_hooks = dict(checkpoint=dict(save_best='mDice'))
