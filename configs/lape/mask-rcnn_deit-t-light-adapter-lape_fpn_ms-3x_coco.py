"""Mask R-CNN, DeiT-Ti with LaPE in the light adapter. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_deit-t-adapter-lape_fpn_ms-3x_coco.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmlape.LightViTAdapter',
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        vit=_base_.model.backbone.vit,
    )
)
