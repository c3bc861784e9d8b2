"""Mask R-CNN, ViT-Adapter-S with LaPE. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_deit-s-adapter_fpn_1x_coco.py'

model = dict(backbone=dict(vit=dict(joining=dict(type='mmlape.LaPE'))))
