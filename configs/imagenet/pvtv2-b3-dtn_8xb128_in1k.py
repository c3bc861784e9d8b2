"""PVTv2-B3 with DTN in stages 1 to 3. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 9): top-1 83.7.
"""

_base_ = './pvtv2-b3_8xb128_in1k.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
