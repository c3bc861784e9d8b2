"""DINO on four maps, Swin-T. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/dino_4scale.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/schedule_detr.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    backbone=dict(
        type='mmlape.SwinTransformer',
        arch='tiny',
        out_indices=[1, 2, 3],
        drop_path_rate=0.2,
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='swin',
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_tiny_patch4_window7_224.pth',
        ),
    ),
    neck=dict(in_channels=[192, 384, 768]),
)
# The first layers have 0.12 of the full rate; published configs have 0.1 in the whole backbone.
optim_wrapper = dict(paramwise_cfg=dict(decay_rate=0.85))
