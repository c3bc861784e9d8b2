"""ViT-S of DINOv2 without its class token, patches resampled from 14 to 16 pixels, in ViT-Adapter-S, the detection
flavour."""

_base_ = '../models/vit-adapter_deit-s.py'

dims = 384
vit_adapter = dict(
    vit=dict(
        img_size=592,
        init_cfg=dict(
            _delete_=True,
            type='mmlape.Pretrained',
            source='timm',
            model='vit_small_patch14_dinov2.lvd142m',
        ),
    ),
)
