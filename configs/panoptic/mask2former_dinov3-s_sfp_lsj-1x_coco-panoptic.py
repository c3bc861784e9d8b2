"""Mask2Former, DINOv3-S, plain. COCO, things and stuff, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/mask2former_panoptic.py', '../_base_/foundation/dinov3-s.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=_base_.vit,
    neck=dict(type='mmlape.SimpleFeaturePyramid', in_channels=_base_.dims, out_channels=256),
    panoptic_head=dict(in_channels=[256] * 4),
)
