"""DeiT-Ti's own weights without their position, all of them trained on. ImageNet-1K, 50 epochs at 1e-5.

What position is put into in Tables 3 to 5 and Figure 11 (section 5.1); 4.1 less than with its position.
Published (Gabor, Table 3): Top 1 Accuracy 68.10, Top 5 Accuracy 88.5.
"""

_base_ = [
    '../_base_/models/classifier_deit-t.py',
    '../_base_/datasets/imagenet_gabor.py',
    '../_base_/schedules/schedule_imagenet_gabor.py',
    '../_base_/default_runtime_mmpretrain.py',
]

model = dict(
    init_cfg=dict(type='mmlape.Pretrained', source='timm', model='deit_tiny_patch16_224'),
    backbone=dict(position=dict(type='mmlape.NoPosition')),
)
optim_wrapper = dict(optimizer=dict(lr=1e-5))
param_scheduler = []
custom_hooks = []
