"""Mask R-CNN, Swin-T plain. COCO, 36 epochs, 8 GPUs x 2 images.

Published (MMDetection, configs/swin): box AP 46.0, mask AP 41.6.
"""

_base_ = [
    '../_base_/models/mask-rcnn_swin-t_fpn.py',
    '../_base_/datasets/coco_instance_detr.py',
    '../_base_/schedules/schedule_3x_swin.py',
    '../_base_/default_runtime_mmdet.py',
]
