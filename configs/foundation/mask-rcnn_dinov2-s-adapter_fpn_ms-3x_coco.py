"""Mask R-CNN, DINOv2-S in ViT-Adapter. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/mask-rcnn_adapter.py', '../_base_/foundation/dinov2-s.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(
        _base_.adapter,
        vit=dict(
            _base_.vit,
            drop_path_rate=_base_.drop_path_rate,
            window_size=_base_.window_size,
        ),
    ),
    neck=dict(in_channels=[_base_.dims] * 4),
)
