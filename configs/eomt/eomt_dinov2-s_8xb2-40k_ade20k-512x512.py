"""EoMT, DINOv2-S. ADE20K, 40K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/eomt_semantic.py', '../_base_/foundation/dinov2-s.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(vit=dict(_base_.vit, final_norm=True)),
)
