"""Swin-T, a learned table instead of relative positions, default joining. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 80.92; 72.76 at epoch 100.
"""

_base_ = './swin-t_8xb128_in1k.py'

model = dict(
    backbone=dict(
        attention_position=False,
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(type='mmlape.DefaultJoining'),
    )
)
