"""ViT-L of DINOv2 in ViT-Adapter-L, in the place of ``dinov2-s_windows.py``."""

_base_ = './augreg-l_windows.py'

vit_adapter = dict(vit=dict(img_size=592, init_cfg=dict(model='vit_large_patch14_dinov2.lvd142m')))
