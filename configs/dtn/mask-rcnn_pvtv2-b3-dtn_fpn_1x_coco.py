"""Mask R-CNN, PVTv2-B3 with DTN in stages 1 to 3. COCO, 12 epochs, 8 GPUs x 2 images.

There is no published figure for this row: the paper has DTN in PVTv2-B3 as a classifier (Table 9: 83.7 %).
"""

_base_ = './mask-rcnn_pvtv2-b3_fpn_1x_coco.py'

model = dict(backbone=dict(norm_cfg=dict(_delete_=True, type='mmlape.DTN')))
