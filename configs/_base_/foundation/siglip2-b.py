"""SigLIP 2-B (WebLI, 512 pixels) by timm's name; patches of 16 pixels."""

_base_ = './size-b.py'

pixels = dict(mean=[127.5] * 3, std=[127.5] * 3)
vit = dict(
    type='mmlape.VisionTransformer',
    arch='vit_base_patch16_siglip_512.v2_webli',
    init_cfg=dict(type='mmlape.Pretrained', source='timm'),
)
