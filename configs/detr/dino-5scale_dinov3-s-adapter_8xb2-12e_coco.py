"""DINO on five maps, DINOv3-S in ViT-Adapter. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/dino_5scale.py',
    '../_base_/foundation/dinov3-s.py',
    '../_base_/datasets/coco_detection_detr.py',
    '../_base_/schedules/schedule_detr.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(
        _base_.adapter,
        type='mmlape.ViTAdapter',
        vit=dict(
            _base_.vit,
            drop_path_rate=_base_.drop_path_rate,
            window_size=_base_.window_size,
        ),
        norm_cfg=dict(type='SyncBN', requires_grad=True),
    ),
    neck=dict(in_channels=[_base_.dims] * 4),
)
