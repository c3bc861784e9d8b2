"""ViT-L of AugReg in ViT-Adapter-L, the detection flavour: windows in five of six layers."""

_base_ = './augreg-l.py'

vit_adapter = dict(
    vit=dict(window_size=[14, 14, 14, 14, 14, None] * 4),
    vit_feature='last',
)
