"""CIFAR-10 as CIFAR-100, but for the learning rate of 5.5e-4, from 1e-5, and no Mixup and CutMix after epoch 175."""

_base_ = './schedule_cifar100.py'

optim_wrapper = dict(optimizer=dict(lr=5.5e-4))
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-5 / 5.5e-4, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=10, end=300),
]  # fmt: skip
custom_hooks = [
    dict(type='SwitchRecipeHook', schedule=[dict(action_epoch=176, batch_augments=None)]),
]
