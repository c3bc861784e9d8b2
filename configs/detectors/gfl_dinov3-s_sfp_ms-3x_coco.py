"""GFL, DINOv3-S, plain, with ViTDet's simple feature pyramid. COCO, 36 epochs, 8 GPUs x 2 images.

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
    backbone=dict(_base_.vit, drop_path_rate=0.1, window_size=_base_.window_size),
    neck=dict(
        _delete_=True,
        type='mmlape.SimpleFeaturePyramid',
        in_channels=_base_.dims,
        out_channels=256,
        scales=(2, 1, 0.5),
        num_outs=5,
    ),
)
