"""Mask R-CNN, ViT-Adapter-S with DTN in the first 10 of the ViT's 12 layers. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row: the paper has DTN in ViT (Table 1) and detectors on DTN-PVT (Table 11).
"""

_base_ = '../lape/mask-rcnn_deit-s-adapter_fpn_ms-3x_coco.py'

model = dict(backbone=dict(vit=dict(norm_cfg=dict(type='mmlape.DTN'))))
