"""RetinaNet, PVT-Small with LayerNorm. COCO, 12 epochs, 8 GPUs x 2 images.

Published (DTN, ICLR 2022, Table 11): box AP 40.4.
"""

_base_ = './retinanet_pvt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        arch='small',
        init_cfg=dict(
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_small.pth'
        ),
    )
)
