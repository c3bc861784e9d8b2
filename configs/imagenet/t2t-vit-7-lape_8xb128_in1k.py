"""T2T-ViT-7 with LaPE in all layers. ImageNet-1K, 310 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 71.92; 66.43 at epoch 100.
"""

_base_ = './t2t-vit-7_8xb128_in1k.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
