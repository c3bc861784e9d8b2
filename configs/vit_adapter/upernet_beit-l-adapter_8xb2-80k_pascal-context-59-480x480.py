"""UPerNet, BEiT-L in ViT-Adapter-L. Pascal Context, 80K iterations, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): mIoU 67.0.
"""

_base_ = [
    '../_base_/vit_adapter/upernet.py',
    '../_base_/vit_adapter/beit-l.py',
    '../_base_/datasets/pascal-context-59.py',
    '../_base_/vit_adapter/runtime_80k.py',
]

crop_size = _base_.crop_size
num_classes = _base_.num_classes
model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(_base_.vit_adapter, vit=dict(_base_.vit_adapter.vit, img_size=crop_size)),
    decode_head=dict(in_channels=[_base_.dims] * 4, num_classes=num_classes),
    auxiliary_head=dict(in_channels=_base_.dims, num_classes=num_classes),
    test_cfg=dict(crop_size=crop_size, stride=_base_.stride),
)
