"""UPerNet, DINOv2-L with registers in ViT-Adapter. ADE20K, 160K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/upernet_adapter-l.py', '../_base_/foundation/dinov2-reg4-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.adapter, vit=dict(_base_.vit, drop_path_rate=_base_.drop_path_rate)),
    decode_head=dict(in_channels=[_base_.dims] * 4),
    auxiliary_head=dict(in_channels=_base_.dims),
)
