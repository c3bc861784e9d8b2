"""A linear head, SigLIP 2-B, frozen. ADE20K, 40K iterations, 8 GPUs x 2 images.

Published (DINOv3, Table 14): mIoU 41.6.
"""

_base_ = ['../_base_/foundation/linear.py', '../_base_/foundation/siglip2-b.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.vit, frozen_stages=_base_.depth, **_base_.native),
    neck=dict(in_channels=_base_.dims),
    decode_head=dict(in_channels=_base_.dims, channels=_base_.dims),
)
