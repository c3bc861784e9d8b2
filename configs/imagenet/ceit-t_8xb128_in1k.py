"""CeiT-T, default joining of the position embedding. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 76.52; 66.91 at epoch 100.
"""

_base_ = './deit-t_8xb128_in1k.py'

model = dict(backbone=dict(type='mmlape.CeiT', arch='ceit-tiny'))
# In the released code the embedding of layers decays, the embedding of positions does not.
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'layer_position': dict(decay_mult=1.0)}))
