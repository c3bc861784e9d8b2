"""DINOv3-L (LVD-1689M, 4 registers, rotary position) by timm's name; patches of 16 pixels."""

_base_ = './size-l.py'

pixels = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
vit = dict(
    type='mmlape.VisionTransformer',
    arch='vit_large_patch16_dinov3.lvd1689m',
    with_cp=True,
    init_cfg=dict(type='mmlape.Pretrained', source='timm'),
)
