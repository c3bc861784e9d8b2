"""Segmenter-B-Mask/16 with LaPE. ADE20K, 160K iterations, 8 GPUs x 1 image.

There is no published figure for this row.
"""

_base_ = './segmenter_deit-b_mask_8xb1-160k_ade20k-512x512.py'

model = dict(backbone=dict(joining=dict(type='mmlape.LaPE')))
