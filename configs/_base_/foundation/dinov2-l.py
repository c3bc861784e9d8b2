"""DINOv2-L (LVD-142M, no registers) by timm's name; patches of 14 pixels, resampled to 16, and as many positions."""

_base_ = './size-l.py'

pixels = dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375])
vit = dict(
    type='mmlape.VisionTransformer',
    arch='vit_large_patch14_dinov2.lvd142m',
    patch_size=16,
    img_size=592,
    with_cp=True,
    init_cfg=dict(type='mmlape.Pretrained', source='timm'),
)
# As it was trained, for the frozen backbone.
native = dict(patch_size=14, img_size=518)
