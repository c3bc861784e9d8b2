"""UPerNet, DINOv3-S in the light adapter. ADE20K, 160K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './upernet_dinov3-s-adapter_8xb2-160k_ade20k-512x512.py'

model = dict(
    backbone=dict(
        _delete_=True,
        type='mmlape.LightViTAdapter',
        norm_cfg=dict(type='SyncBN', requires_grad=True),
        vit=_base_.model.backbone.vit,
    )
)
