"""Swin-T, relative position bias alone. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 81.12; 73.79 at epoch 100.
Published (DTN, ICLR 2022, Table 2): top-1 81.2.
"""

_base_ = [
    '../_base_/models/classifier_swin-t.py',
    '../_base_/datasets/imagenet_unrepeated.py',
    '../_base_/schedules/schedule_imagenet_swin.py',
    '../_base_/default_runtime_mmpretrain.py',
]

train_dataloader = dict(batch_size=128)
