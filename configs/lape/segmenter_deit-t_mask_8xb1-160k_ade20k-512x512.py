"""Segmenter-T-Mask/16, default joining of the position embedding. ADE20K, 160K iterations, 8 GPUs x 1 image.

Published (LaPE, ICCV 2023, Table 4; mean of 5 seeds): mIoU 36.534.
"""

_base_ = [
    '../_base_/models/segmenter_deit-t_mask.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/schedule_160k.py',
    '../_base_/default_runtime_mmseg.py',
]
train_dataloader = dict(batch_size=1)
