"""T2T-ViT_t-14 (transformer layers in the stem) with LayerNorm. ImageNet-1K, 310 epochs, 8 GPUs x 64 images.

Published (DTN, ICLR 2022, Table 12): top-1 81.7.
"""

_base_ = [
    '../_base_/models/classifier_t2t-vit-7.py',
    '../_base_/datasets/imagenet_t2t.py',
    '../_base_/schedules/schedule_imagenet_t2t.py',
    '../_base_/default_runtime_mmpretrain.py',
]

model = dict(backbone=dict(arch='t2t-vit-t-14'), head=dict(in_channels=384))
