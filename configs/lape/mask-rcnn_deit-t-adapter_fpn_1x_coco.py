"""Mask R-CNN, ViT-Adapter-Ti, default joining of the position embedding. COCO, 12 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, Table 1): box AP 41.1, mask AP 37.5.
"""

_base_ = [
    '../_base_/models/mask-rcnn_deit-t-adapter_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]
