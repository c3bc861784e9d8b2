"""T2T-ViT_t-14 with DTN in all layers but the last two. ImageNet-1K, 310 epochs, 8 GPUs x 64 images.

Published (DTN, ICLR 2022, Table 12): top-1 82.4.
"""

_base_ = './t2t-vit-t-14_8xb64_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
