"""DINOv2-B with 4 registers (LVD-142M) by timm's name; patches of 14 pixels, resampled to 16, and as many positions."""

_base_ = './dinov2-b.py'

vit = dict(arch='vit_base_patch14_reg4_dinov2.lvd142m')
