"""``mask2former_instance.py` on ViT-Adapter."""

_base_ = './mask2former_instance.py'

model = dict(
    backbone=dict(
        type='mmlape.ViTAdapter',
        vit_feature='per_stage',
        norm_cfg=dict(type='SyncBN', requires_grad=True),
    )
)
