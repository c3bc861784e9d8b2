"""Mask R-CNN, ViT-Adapter-Ti with LaPE. COCO, 36 epochs, 8 GPUs x 2 images.

Published (LaPE, ICCV 2023, Table 3; mean of seeds 121-125; the ViT pre-trained with LaPE): box AP 46.3, mask AP 41.2.
"""

_base_ = './mask-rcnn_deit-t-adapter_fpn_ms-3x_coco.py'

model = dict(backbone=dict(vit=dict(joining=dict(type='mmlape.LaPE'))))
