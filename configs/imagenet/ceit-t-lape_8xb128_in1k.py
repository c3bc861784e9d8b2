"""CeiT-T with LaPE. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 76.87; 67.21 at epoch 100.
"""

_base_ = './ceit-t_8xb128_in1k.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
