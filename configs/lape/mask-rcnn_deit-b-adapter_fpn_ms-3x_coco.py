"""Mask R-CNN, ViT-Adapter-B, default joining of the position embedding. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, Table 1): box AP 49.6, mask AP 43.6.
"""

_base_ = [
    '../_base_/models/mask-rcnn_deit-b-adapter_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]
