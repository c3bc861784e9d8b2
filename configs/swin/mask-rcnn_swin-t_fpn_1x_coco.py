"""Mask R-CNN, Swin-T plain. COCO, 12 epochs, 8 GPUs x 2 images.

Published (MMDetection, configs/swin): box AP 42.7, mask AP 39.3.
"""

_base_ = [
    '../_base_/models/mask-rcnn_swin-t_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x_swin.py',
    '../_base_/default_runtime_mmdet.py',
]
