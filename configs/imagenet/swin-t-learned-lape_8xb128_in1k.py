"""Swin-T, a learned table instead of relative positions, with LaPE. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 81.25; 73.39 at epoch 100.
"""

_base_ = './swin-t-learned_8xb128_in1k.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
