"""ViT-Lite-7/4, default joining of the position embedding. CIFAR-100, 310 epochs, 1 GPU x 128 images.

Published (LaPE, ICCV 2023, Table 2; mean of seeds 121-125): Top 1 Accuracy 74.984.
"""

_base_ = [
    '../_base_/models/classifier_vit-lite.py',
    '../_base_/datasets/cifar100.py',
    '../_base_/schedules/schedule_cifar100.py',
    '../_base_/default_runtime_mmpretrain.py',
]
