"""LeViT-128S with batch norms. ImageNet-1K, 1000 epochs, 8 GPUs x 256 images.

Published (DTN, ICLR 2022, Table 12): top-1 76.6. LeViT's own recipe has a teacher and clips gradients by the size of
weights (AGC); this config does neither.
"""

_base_ = [
    '../_base_/models/classifier_levit-128s.py',
    '../_base_/datasets/imagenet.py',
    '../_base_/schedules/schedule_imagenet.py',
    '../_base_/default_runtime_mmpretrain.py',
]

train_dataloader = dict(batch_size=256)
optim_wrapper = dict(optimizer=dict(lr=2e-3, weight_decay=0.025))
param_scheduler = [
    # from 1e-6
    dict(type='LinearLR', start_factor=5e-4, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5),
]  # fmt: skip
train_cfg = dict(max_epochs=1000)
auto_scale_lr = dict(base_batch_size=2048)
