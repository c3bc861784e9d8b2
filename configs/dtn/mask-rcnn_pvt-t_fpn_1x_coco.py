"""Mask R-CNN, PVT-Tiny with LayerNorm. COCO, 12 epochs, 8 GPUs x 2 images.

Published (DTN, ICLR 2022, Table 11): box AP 36.7, mask AP 35.1.
"""

_base_ = [
    '../_base_/models/mask-rcnn_pvt-t_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x_pvt.py',
    '../_base_/default_runtime_mmdet.py',
]

optim_wrapper = dict(optimizer=dict(lr=2e-4))
