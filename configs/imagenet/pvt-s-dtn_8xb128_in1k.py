"""PVT-Small with DTN in stages 1 to 3. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 2): top-1 80.8. Its attention has 4, 4, 5 and 8 heads.
"""

_base_ = './pvt-s_8xb128_in1k.py'

model = dict(backbone=dict(num_heads=[4, 4, 5, 8], norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
