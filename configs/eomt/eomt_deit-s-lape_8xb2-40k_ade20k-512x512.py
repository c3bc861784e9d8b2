"""EoMT, DeiT-S with LaPE. ADE20K, 40K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = '../_base_/foundation/eomt_semantic.py'

model = dict(
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]),
    backbone=dict(
        vit=dict(
            type='mmlape.VisionTransformer',
            arch='deit-small',
            img_size=512,
            joining=dict(type='mmlape.LaPE'),
            init_cfg=dict(
                type='mmlape.Pretrained',
                source='deit',
                checkpoint='https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth',
            ),
        )
    ),
)
