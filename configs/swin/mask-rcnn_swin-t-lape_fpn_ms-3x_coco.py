"""Mask R-CNN, Swin-T with LaPE beside its relative bias. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_swin-t_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        position=dict(type='mmlape.LearnedPosition'),
        joining=dict(type='mmlape.LaPE'),
    )
)
