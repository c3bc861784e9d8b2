"""ViT-Lite-7/4, default joining of the position embedding. CIFAR-10, 310 epochs, 1 GPU x 128 images.

Published (LaPE, ICCV 2023, Table 2; mean of seeds 121-125): Top 1 Accuracy 93.448.
"""

_base_ = [
    '../_base_/models/classifier_vit-lite.py',
    '../_base_/datasets/cifar10.py',
    '../_base_/schedules/schedule_cifar10.py',
    '../_base_/default_runtime_mmpretrain.py',
]

model = dict(head=dict(num_classes=10))
