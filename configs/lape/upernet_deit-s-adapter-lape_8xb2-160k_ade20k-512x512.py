"""UPerNet, ViT-Adapter-S with LaPE. ADE20K, 160K iterations, 8 GPUs x 2 images.

Published (LaPE, ICCV 2023, Table 4; mean of 5 seeds; the ViT pre-trained with LaPE): mIoU 45.550.
"""

_base_ = './upernet_deit-s-adapter_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(vit=dict(joining=dict(type='mmlape.LaPE'))))
