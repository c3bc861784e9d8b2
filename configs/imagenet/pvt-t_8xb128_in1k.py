"""PVT-Tiny with LayerNorm. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 2): top-1 75.1.
"""

_base_ = [
    '../_base_/models/classifier_pvt-t.py',
    '../_base_/datasets/imagenet.py',
    '../_base_/schedules/schedule_imagenet.py',
    '../_base_/default_runtime_mmpretrain.py',
]
