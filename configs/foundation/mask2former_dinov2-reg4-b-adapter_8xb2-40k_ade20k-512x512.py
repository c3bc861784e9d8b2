"""Mask2Former, DINOv2-B with registers in ViT-Adapter. ADE20K, 40K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/foundation/mask2former_semantic_adapter.py',
    '../_base_/foundation/dinov2-reg4-b.py',
]

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.adapter, vit=_base_.vit),
    decode_head=dict(in_channels=[_base_.dims] * 4),
)
