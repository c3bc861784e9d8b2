"""CVT-7/4, default joining of the position embedding. CIFAR-100, 310 epochs, 1 GPU x 128 images.

Published (LaPE, ICCV 2023, Table 2; mean of seeds 121-125): Top 1 Accuracy 77.452.
"""

_base_ = './vit-lite-7-4_1xb128_cifar100.py'

model = dict(backbone=dict(arch='cvt-7-4'))
