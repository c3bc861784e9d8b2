"""ViT-S* (9 heads, 432 channels) with InstanceNorm in its first 10 layers. ImageNet-1K, 300 epochs.

Published (DTN, ICLR 2022, Table 3): Top 1 Accuracy 77.6. It is row (b) of Table 5 too.
"""

_base_ = './vit-s-in_8xb128_in1k.py'

model = dict(backbone=dict(arch='vit-small-star'), head=dict(in_channels=432))
