"""Mask2Former, BEiTv2-L in ViT-Adapter-L. ADE20K after COCO-Stuff, 80K iterations, 16 GPUs x 1 image.

Published (ViT-Adapter, ICLR 2023, README of its code): mIoU 61.2.
"""

_base_ = [
    '../_base_/vit_adapter/mask2former_896.py',
    '../_base_/vit_adapter/beitv2-l.py',
    '../_base_/datasets/ade20k_896.py',
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

# All but the classifier: the weights of the row on COCO-Stuff 164k.
load_from = 'work_dirs/mask2former_beitv2-l-adapter_16xb1-80k_coco-stuff164k-896x896/iter_80000.pth'
