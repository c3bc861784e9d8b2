"""Swin-T with DTN in every block. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 2): top-1 81.9.
"""

_base_ = './swin-t_8xb128_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
