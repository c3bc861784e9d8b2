"""RetinaNet, PVTv2-B2 with LayerNorm. COCO, 12 epochs, 8 GPUs x 2 images.

Published (detection results in the authors' repository, whai362/PVT): box AP 44.6.
"""

_base_ = './retinanet_pvt-t_fpn_1x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmlape.PyramidVisionTransformerV2',
        arch='b2',
        drop_path_rate=0.1,
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='pvt',
            checkpoint='https://github.com/whai362/PVT/releases/download/v2/pvt_v2_b2.pth',
        ),
    )
)
