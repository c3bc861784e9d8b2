"""RetinaNet on ViT-Adapter-S."""

_base_ = ['./retinanet_fpn.py', './vit-adapter_deit-s.py']

model = dict(backbone={{_base_.vit_adapter}}, neck=dict(in_channels=[384] * 4))
