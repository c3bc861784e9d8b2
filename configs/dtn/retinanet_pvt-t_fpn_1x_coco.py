"""RetinaNet, PVT-Tiny with LayerNorm. COCO, 12 epochs, 8 GPUs x 2 images.

Published (DTN, ICLR 2022, Table 11): box AP 36.7.
"""

_base_ = [
    '../_base_/models/retinanet_pvt-t_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/schedule_1x_pvt.py',
    '../_base_/default_runtime_mmdet.py',
]
