"""FCOS, ViT-Adapter-S with LaPE. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/fcos_fpn.py',
    '../_base_/models/vit-adapter_deit-s.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    backbone=dict(
        _base_.vit_adapter,
        vit=dict(_base_.vit_adapter.vit, joining=dict(type='mmlape.LaPE')),
        out_indices=[1, 2, 3],
    ),
    neck=dict(in_channels=[384] * 3, start_level=0),
)
