"""Mask R-CNN, PVT-Tiny with DTN in stages 1 to 3 and LaPE in every stage. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_pvt-t-dtn_fpn_1x_coco.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
