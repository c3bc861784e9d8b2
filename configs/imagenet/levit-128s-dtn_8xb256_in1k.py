"""LeViT-128S with DTN at the end of branches. ImageNet-1K, 1000 epochs, 8 GPUs x 256 images.

Published (DTN, ICLR 2022, Table 12): top-1 77.3. LeViT's own recipe has a teacher and clips gradients by the size of
weights (AGC); this config does neither.
"""

_base_ = './levit-128s_8xb256_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(type='mmlape.DTN')))
