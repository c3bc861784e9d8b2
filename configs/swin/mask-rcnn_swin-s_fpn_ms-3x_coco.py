"""Mask R-CNN, Swin-S plain. COCO, 36 epochs, 8 GPUs x 2 images.

Published (MMDetection, configs/swin; mixed precision): box AP 48.2, mask AP 43.2.
"""

_base_ = './mask-rcnn_swin-t_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(
            checkpoint='https://github.com/SwinTransformer/storage/releases/download/v1.0.0/swin_small_patch4_window7_224.pth'
        ),
    )
)
