"""UPerNet, DINOv2-B, plain. ADE20K, 60K iterations, 4 GPUs x 8 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/upernet.py', '../_base_/foundation/dinov2-b.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.vit, out_indices=_base_.out_indices),
    neck=dict(embed_dim=_base_.dims),
    decode_head=dict(in_channels=[_base_.dims] * 4, channels=_base_.dims),
    auxiliary_head=dict(in_channels=_base_.dims),
)
