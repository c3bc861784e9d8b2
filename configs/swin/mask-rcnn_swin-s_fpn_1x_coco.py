"""Mask R-CNN, Swin-S plain. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_swin-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    )
)
