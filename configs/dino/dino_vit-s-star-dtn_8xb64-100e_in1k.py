"""DINO of ViT-S* (9 heads, 432 channels) with DTN in its first 10 layers. ImageNet-1K without labels, 100 epochs, 8
GPUs x 64 images.

There is no published figure for this row: Table 7 of DTN (ICLR 2022) evaluates by a linear classifier.
"""

_base_ = './dino_vit-s-star_8xb64-100e_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
