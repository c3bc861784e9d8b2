"""Swin-S with DTN in every block. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 9): top-1 83.5.
"""

_base_ = './swin-s_8xb128_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
