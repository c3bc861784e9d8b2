"""UPerNet, Swin-S with DTN in every block. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './upernet_swin-s_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
