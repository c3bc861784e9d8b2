"""CCT-7/3x1 with LaPE. CIFAR-100, 310 epochs, 1 GPU x 128 images.

Published (LaPE, ICCV 2023, Table 2; mean of seeds 121-125): Top 1 Accuracy 81.986.
"""

_base_ = './cct-7-3x1_1xb128_cifar100.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
