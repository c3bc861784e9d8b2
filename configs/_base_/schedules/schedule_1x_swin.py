"""The schedule of Swin: ``schedule_1x`` with a warm-up of 1000 iterations; biases decay, norms and position do not."""

_base_ = './schedule_1x.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=1000),
    dict(type='MultiStepLR', begin=0, end=12, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
optim_wrapper = dict(
    paramwise_cfg=dict(
        _delete_=True,
        custom_keys={
            'pos_embed': dict(decay_mult=0.0),
            'position': dict(decay_mult=0.0),  # relative bias, joining
            'norm': dict(decay_mult=0.0),
        },
    )
)
