"""Cascade Mask R-CNN, ViT-Adapter-S, default joining of the position embedding. COCO, 36 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, Table 2; mask AP: the authors' repository): box AP 51.5, mask AP 44.3.
"""

_base_ = [
    '../_base_/models/cascade-mask-rcnn_deit-s-adapter_fpn.py',
    '../_base_/datasets/coco_instance_ms.py',
    '../_base_/schedules/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]
