"""Mask2Former, DINOv2-B in ViT-Adapter. COCO instances, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/foundation/mask2former_instance_adapter.py',
    '../_base_/foundation/dinov2-b.py',
]

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(_base_.adapter, vit=_base_.vit),
    panoptic_head=dict(in_channels=[_base_.dims] * 4),
)
