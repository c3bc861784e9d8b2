"""RetinaNet, ViT-Adapter-S, default joining of the position embedding. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row. The optimizer is ViT-Adapter's, head and schedule are MMDetection's.
"""

_base_ = [
    '../_base_/models/retinanet_deit-s-adapter_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]
