"""Swin-S, relative position bias alone. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 83.17; 76.03 at epoch 100.
Published (DTN, ICLR 2022, Table 9): top-1 83.0.
"""

_base_ = './swin-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='small', drop_path_rate=0.3))
