"""DeiT-B's own weights with a Gabor position instead of the learned one, which alone is trained.

ImageNet-1K, 10 epochs.

Published (Gabor, Table 1): Top 1 Accuracy 81.6, Top 5 Accuracy 95.4.
"""

_base_ = [
    '../_base_/models/classifier_deit-t.py',
    '../_base_/datasets/imagenet_gabor.py',
    '../_base_/schedules/schedule_imagenet_gabor.py',
    '../_base_/default_runtime_mmpretrain.py',
]

model = dict(
    init_cfg=dict(type='mmlape.Pretrained', source='timm', model='deit_base_patch16_224'),
    backbone=dict(arch='deit-base', position=dict(type='mmlape.GaborPosition', variant='G+E')),
    head=dict(in_channels=768),
)
train_cfg = dict(max_epochs=10)
