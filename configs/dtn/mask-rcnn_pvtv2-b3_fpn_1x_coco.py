"""Mask R-CNN, PVTv2-B3 with LayerNorm. COCO, 12 epochs, 8 GPUs x 2 images.

Published (detection results in the authors' repository, whai362/PVT): box AP 47.0, mask AP 42.5.
"""

_base_ = './mask-rcnn_pvtv2-b2_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        arch='b3',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b3.pth'
        ),
    )
)
