"""GFL, PVT-Small with DTN in stages 1 to 3. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/gfl_fpn.py',
    '../_base_/datasets/coco_detection.py',
    '../_base_/schedules/schedule_1x_pvt.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
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
    neck=dict(in_channels=[64, 128, 320, 512]),
)
