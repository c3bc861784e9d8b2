"""Mask2Former, DINOv2-L with registers in ViT-Adapter. ADE20K, 40K iterations, 8 GPUs x 2 images.

Published (EoMT, CVPR 2025, Table 5): mIoU 58.9.
"""

_base_ = [
    '../_base_/foundation/mask2former_semantic_adapter.py',
    '../_base_/foundation/dinov2-reg4-l.py',
]

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.adapter, vit=_base_.vit),
    decode_head=dict(in_channels=[_base_.dims] * 4),
)
