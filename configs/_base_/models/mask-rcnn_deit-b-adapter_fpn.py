"""Mask R-CNN on ViT-Adapter-B."""

_base_ = ['./mask-rcnn_fpn.py', './vit-adapter_deit-b.py']

model = dict(backbone={{_base_.vit_adapter}}, neck=dict(in_channels=[768] * 4))
