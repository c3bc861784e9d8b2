"""A linear classifier on the class token of the frozen ViT-S* of dino_vit-s-star_8xb64-100e_in1k.

ImageNet-1K, 100 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 7): Top 1 Accuracy 74.7.
"""

_base_ = './linear_dino_vit-s_8xb128-100e_in1k.py'

weights = 'work_dirs/dino_vit-s-star_8xb64-100e_in1k/epoch_100.pth'
model = dict(
    backbone=dict(arch='vit-small-star', init_cfg=dict(checkpoint=weights)),
    head=dict(in_channels=432),
)
