"""DeiT-Ti with a distillation token, default joining. ImageNet-1K, 300 epochs, 8 GPUs x 128 images.

Published (LaPE, ICCV 2023, Table 1): top-1 74.16; 61.89 at epoch 100.
"""

_base_ = [
    '../_base_/models/classifier_deit-t-distilled.py',
    '../_base_/datasets/imagenet.py',
    '../_base_/schedules/schedule_imagenet.py',
    '../_base_/default_runtime_mmpretrain.py',
]

custom_imports = dict(
    imports=['mmlape', 'mmlape.research.pretraining.distillation'], allow_failed_imports=False
)
