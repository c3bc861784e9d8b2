"""Mask R-CNN, ViT-Adapter-S, default joining of the position embedding. COCO, 36 epochs, 8 GPUs x 2 images.

Published (LaPE, ICCV 2023, Table 3; mean of seeds 121-125): box AP 48.3, mask AP 42.8.
"""

_base_ = './mask-rcnn_deit-t-adapter_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        vit=dict(
            arch='deit-small',
            drop_path_rate=0.2,
            init_cfg=dict(
                checkpoint='https://dl.fbaipublicfiles.com/deit/deit_small_patch16_224-cd65a155.pth'
            ),
        )
    ),
    neck=dict(in_channels=[384] * 4),
)
