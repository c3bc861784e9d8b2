"""GFL, ViT-Adapter-S with LaPE. COCO, 36 epochs, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = '../vit_adapter/gfl_deit-s-adapter_fpn_ms-3x_coco.py'

model = dict(backbone=dict(vit=dict(joining=dict(type='mmlape.LaPE'))))
