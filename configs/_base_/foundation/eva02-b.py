"""EVA-02-B (masked images, ImageNet-22K) by timm's name; patches of 14 pixels, resampled to 16; 32 x 32 positions."""

_base_ = './size-b.py'

pixels = dict(
    mean=[122.7709383, 116.7460125, 104.09373615],
    std=[68.5005327, 66.6321579, 70.32316305],
)
vit = dict(
    type='mmlape.VisionTransformer',
    arch='eva02_base_patch14_224.mim_in22k',
    patch_size=16,
    img_size=512,
    init_cfg=dict(type='mmlape.Pretrained', source='timm'),
)
# As it was trained, for the frozen backbone.
native = dict(patch_size=14, img_size=224)
