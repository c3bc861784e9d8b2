"""PVT-Large with LayerNorm. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 9): top-1 81.7.
"""

_base_ = './pvt-t_8xb128_in1k.py'

model = dict(backbone=dict(arch='large', drop_path_rate=0.3))
optim_wrapper = dict(clip_grad=dict(max_norm=1.0))
