"""Mask2Former, DINOv2-L, plain. ADE20K, 40K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/mask2former_semantic_plain.py', '../_base_/foundation/dinov2-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=_base_.vit,
    neck=dict(in_channels=_base_.dims),
)
