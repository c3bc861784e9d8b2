"""ViT-B (DeiT-B) with DTN in its first 10 layers. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 1): top-1 82.3.
"""

_base_ = './deit-b_8xb128_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
