"""DeiT-S with a distillation token, default joining. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 80.98; 70.65 at epoch 100.
"""

_base_ = './deit-t-distilled_8xb128_in1k.py'

model = dict(backbone=dict(arch='deit-small'), head=dict(in_channels=384))
