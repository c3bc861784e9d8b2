"""PVT-Small with LayerNorm. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 2): top-1 79.9.
"""

_base_ = './pvt-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='small'))
