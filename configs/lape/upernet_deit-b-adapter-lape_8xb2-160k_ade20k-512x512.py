"""UPerNet, ViT-Adapter-B with LaPE. ADE20K, 160K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './upernet_deit-b-adapter_8xb2-160k_ade20k-512x512.py'

model = dict(backbone=dict(vit=dict(joining=dict(type='mmlape.LaPE'))))
