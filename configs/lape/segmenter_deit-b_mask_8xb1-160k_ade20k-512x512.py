"""Segmenter-B-Mask/16, default joining of the position embedding. ADE20K, 160K iterations, 8 GPUs x 1 image.

There is no published figure for this row.
"""

_base_ = './segmenter_deit-t_mask_8xb1-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        arch='deit-base',
        init_cfg=dict(
            checkpoint='https://dl.fbaipublicfiles.com/deit/deit_base_patch16_224-b5f2ef4d.pth'
        ),
    ),
    decode_head=dict(in_channels=768, channels=768, embed_dims=768, num_heads=12),
)
