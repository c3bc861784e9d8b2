"""Mask R-CNN on ViT-Adapter-Ti."""

_base_ = ['./mask-rcnn_fpn.py', './vit-adapter_deit-t.py']

model = dict(backbone={{_base_.vit_adapter}}, neck=dict(in_channels=[192] * 4))
