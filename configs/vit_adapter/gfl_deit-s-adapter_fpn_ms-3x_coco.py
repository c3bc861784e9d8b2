"""GFL, ViT-Adapter-S. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 50.0.
"""

_base_ = [
    '../_base_/models/gfl_fpn.py',
    '../_base_/models/vit-adapter_deit-s.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    backbone=dict(_base_.vit_adapter, out_indices=[1, 2, 3]),
    neck=dict(in_channels=[384] * 3, start_level=0),
)
