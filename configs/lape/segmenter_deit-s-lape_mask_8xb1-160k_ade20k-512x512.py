"""Segmenter-S-Mask/16 with LaPE. ADE20K, 160K iterations, 8 GPUs x 1 image.

Published (LaPE, ICCV 2023, Table 4; mean of 5 seeds; the ViT pre-trained with LaPE): mIoU 42.808.
"""

_base_ = './segmenter_deit-s_mask_8xb1-160k_ade20k-512x512.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
