"""Mask2Former, BEiT-L in ViT-Adapter-L. ISPRS Potsdam, 80K iterations, 8 GPUs x 1 image.

Published (ViT-Adapter, ICLR 2023, README of its code): mIoU 80.0.
"""

_base_ = [
    '../_base_/vit_adapter/mask2former_narrow.py',
    '../_base_/vit_adapter/beit-l.py',
    '../_base_/datasets/potsdam.py',
    '../_base_/vit_adapter/runtime_80k.py',
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
auto_scale_lr = dict(base_batch_size=8)
