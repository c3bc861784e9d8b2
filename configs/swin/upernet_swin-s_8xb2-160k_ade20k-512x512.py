"""UPerNet, Swin-S plain. ADE20K, 160,000 iterations, 8 GPUs x 2 images.

Published (MMSegmentation, configs/swin): mIoU 47.72.
"""

_base_ = './upernet_swin-t_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    )
)
