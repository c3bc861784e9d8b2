"""DeiT-B, default joining of the position embedding. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 81.64; 74.16 at epoch 100.
Published (DTN, ICLR 2022, Table 1, ViT-B): top-1 81.8.
"""

_base_ = './deit-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='deit-base'), head=dict(in_channels=768))
