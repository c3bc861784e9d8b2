"""CeiT-S, default joining of the position embedding. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 81.88; 73.60 at epoch 100.
"""

_base_ = './ceit-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='ceit-small'), head=dict(in_channels=384))
