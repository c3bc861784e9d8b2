"""HTC++, BEiTv2-L in ViT-Adapter-L. COCO, 36 epochs, 16 GPUs x 1 image.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 58.8, mask AP 51.1.
"""

_base_ = [
    '../_base_/models/htc_fpn.py',
    '../_base_/vit_adapter/beitv2-l_windows.py',
    '../_base_/datasets/coco_instance_htc.py',
    '../_base_/vit_adapter/schedule_3x.py',
    '../_base_/default_runtime_mmdet.py',
]

dims = _base_.dims
model = dict(
    backbone=_base_.vit_adapter,
    neck=[
        dict(type='mmlape.LastMapAttention', in_channels=dims, drop_path_rate=0.3),
        dict(_base_.model.neck, in_channels=[dims] * 4),
    ],
)
