"""DeiT-S, default joining of the position embedding. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 80.00; 68.41 at epoch 100.
Published (DTN, ICLR 2022, Table 1, ViT-S): top-1 79.9.
"""

_base_ = './deit-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
