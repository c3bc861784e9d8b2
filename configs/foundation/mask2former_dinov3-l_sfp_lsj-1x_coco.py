"""Mask2Former, DINOv3-L, plain. COCO instances, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/mask2former_instance_plain.py', '../_base_/foundation/dinov3-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=_base_.vit,
    neck=dict(in_channels=_base_.dims),
)
