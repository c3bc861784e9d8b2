"""Mask R-CNN, DINOv2-S with registers, plain. COCO, 100 epochs, 64 images per step.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/mask-rcnn.py', '../_base_/foundation/dinov2-reg4-s.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.vit, window_size=_base_.window_size),
    neck=dict(in_channels=_base_.dims),
)
