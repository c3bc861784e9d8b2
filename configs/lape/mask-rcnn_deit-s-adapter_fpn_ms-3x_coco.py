"""Mask R-CNN, ViT-Adapter-S, default joining of the position embedding. COCO, 36 epochs, 8 GPUs x 2 images.

Published (LaPE, ICCV 2023, Table 3; mean of seeds 121-125): box AP 48.3, mask AP 42.8.
"""

_base_ = [
    '../_base_/models/mask-rcnn_deit-s-adapter_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]
