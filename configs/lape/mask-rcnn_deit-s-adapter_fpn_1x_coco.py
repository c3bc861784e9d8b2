"""Mask R-CNN, ViT-Adapter-S, default joining of the position embedding. COCO, 12 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, Table 1): box AP 44.7, mask AP 39.9.
"""

_base_ = [
    '../_base_/models/mask-rcnn_deit-s-adapter_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]
