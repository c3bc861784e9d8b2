"""DeiT-Ti, default joining of the position embedding. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 71.54; 58.13 at epoch 100.
"""

_base_ = [
    '../_base_/models/classifier_deit-t.py',
    '../_base_/datasets/imagenet.py',
    '../_base_/schedules/schedule_imagenet.py',
    '../_base_/default_runtime_mmpretrain.py',
]
