"""Mask2Former, PVT-Small with DTN in stages 1 to 3. COCO, things and stuff, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = '../_base_/foundation/mask2former_panoptic.py'

model = dict(
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375]),
    backbone=dict(
        type='mmlape.PyramidVisionTransformer',
        arch='small',
        drop_path_rate=0.1,
        norm_cfg=dict(type='mmlape.DTN'),
        joining=dict(type='mmlape.DefaultJoining'),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='pvt',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth',
        ),
    ),
    panoptic_head=dict(in_channels=[64, 128, 320, 512]),
)
