"""Segmenter-S-Mask/16, default joining of the position embedding. ADE20K, 160K iterations, 8 GPUs x 1 image.

Published (LaPE, ICCV 2023, Table 4; mean of 5 seeds): mIoU 42.374.
"""

_base_ = './segmenter_deit-t_mask_8xb1-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='deit-small',
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth'
        ),
    ),
    decode_head=dict(in_channels=384, channels=384, embed_dims=384, num_heads=6),
)
