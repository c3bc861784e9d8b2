"""LeViT-128S with batch norms. ImageNet-1K, 1000 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 12): top-1 76.6. LeViT's own recipe has a teacher and clips gradients by the size of
weights (AGC); this config does neither.
"""

_base_ = [
    '../_base_/models/classifier_levit-128s.py',
    '../_base_/datasets/imagenet.py',
    '../_base_/schedules/schedule_imagenet.py',
    '../_base_/default_runtime_mmpretrain.py',
]

optim_wrapper = dict(optimizer=dict(weight_decay=0.025))
train_cfg = dict(max_epochs=1000)
