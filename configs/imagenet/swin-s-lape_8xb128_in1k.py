"""Swin-S with LaPE on a learned table, beside its relative bias. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 83.39; 76.93 at epoch 100.
"""

_base_ = './swin-s_8xb128_in1k.py'

model = dict(
    backbone=dict(
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(type='mmlape.LaPE'),
    )
)
