"""ViT-S* (9 heads, 432 channels) with LayerNorm. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 1): top-1 80.6.
"""

_base_ = './deit-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='vit-small-star'), head=dict(in_channels=432))
