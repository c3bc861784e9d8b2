"""Mask2Former, ViT-Adapter-S with LaPE. COCO, things and stuff, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/foundation/mask2former_panoptic.py',
    '../_base_/models/vit-adapter_deit-s.py',
]

adapter = _base_.vit_adapter
model = dict(
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]),
    backbone=dict(
        adapter,
        vit=dict(adapter.vit, window_size=None, joining=dict(type='mmlape.LaPE')),
        vit_feature='per_stage',
    ),
    panoptic_head=dict(in_channels=[384] * 4),
)
del adapter
