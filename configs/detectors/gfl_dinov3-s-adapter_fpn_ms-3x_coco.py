"""GFL, DINOv3-S in ViT-Adapter. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = [
    '../_base_/models/gfl_fpn.py',
    '../_base_/foundation/dinov3-s.py',
    '../_base_/datasets/coco_detection_ms.py',
    '../_base_/schedules/schedule_3x_layer-decay.py',
    '../_base_/default_runtime_mmdet.py',
]

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(
        _base_.adapter,
        type='mmlape.ViTAdapter',
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        vit=dict(_base_.vit, drop_path_rate=_base_.drop_path_rate, window_size=_base_.window_size),
        out_indices=[1, 2, 3],
    ),
    neck=dict(in_channels=[_base_.dims] * 3, start_level=0),
)
