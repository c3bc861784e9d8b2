"""UPerNet, ViT-Adapter-Ti, default joining of the position embedding. ADE20K, 160K iterations, 8 GPUs x 2 images.

Published (LaPE, ICCV 2023, Table 4; mean of 5 seeds): mIoU 40.660.
"""

_base_ = [
    '../_base_/models/upernet_deit-t-adapter.py',
    '../_base_/datasets/ade20k_multiple-of-32.py',
    '../_base_/schedules/schedule_160k_layer-decay.py',
    '../_base_/default_runtime_mmseg.py',
]

optim_wrapper = dict(optimizer=dict(lr=1.2e-4))
