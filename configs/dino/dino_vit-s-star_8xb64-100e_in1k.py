"""DINO of ViT-S* (9 heads, 432 channels) with LayerNorm. ImageNet-1K without labels, 100 epochs, 8 GPUs x 64 images.

There is no published figure for this row: Table 7 of DTN (ICLR 2022) evaluates by a linear classifier.
"""

_base_ = './dino_vit-s_8xb64-100e_in1k.py'

model = dict(backbone=dict(arch='vit-small-star'), head=dict(in_channels=432))
