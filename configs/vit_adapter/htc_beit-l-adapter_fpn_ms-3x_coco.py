"""HTC++, BEiT-L in ViT-Adapter-L. COCO, 36 epochs, 16 GPUs x 1 image.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 58.4, mask AP 50.8.
"""

_base_ = [
    '../_base_/models/htc_fpn.py',
    '../_base_/vit_adapter/beit-l_windows.py',
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
    test_cfg=dict(rpn=dict(nms=dict(type='soft_nms'))),
)
