"""Mask R-CNN, Swin-T with DTN in every block. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = './mask-rcnn_swin-t_fpn_ms-3x_coco.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
