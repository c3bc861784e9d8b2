"""Cascade Mask R-CNN, ViT-Adapter-B. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 52.1, mask AP 44.8.
"""

_base_ = [
    '../_base_/models/cascade-mask-rcnn_fpn.py',
    '../_base_/models/vit-adapter_deit-b.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(backbone=_base_.vit_adapter, neck=dict(in_channels=[768] * 4))
