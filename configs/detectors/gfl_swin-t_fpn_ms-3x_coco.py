"""GFL, Swin-T plain. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/gfl_fpn.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/schedule_3x_swin.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    backbone=dict(
        type='mmlape.SwinTransformer',
        arch='tiny',
        drop_path_rate=0.2,
        out_indices=[1, 2, 3],
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='swin',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768], start_level=0),
)
