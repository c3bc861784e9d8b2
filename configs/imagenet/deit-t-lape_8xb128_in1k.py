"""DeiT-Ti with LaPE. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 73.11; 60.36 at epoch 100.
"""

_base_ = './deit-t_8xb128_in1k.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
