"""T2T-ViT's 300 epochs, and 10 more at the last learning rate; what is tested is an average of the weights (0.99996).

512 images a step, 10 epochs of warm-up from 1e-6, cosine from 5e-4 to 1e-5: the published training command.
"""

_base_ = './schedule_imagenet.py'

optim_wrapper = dict(optimizer=dict(lr=5e-4))
param_scheduler = [
    # from 1e-6
    dict(type='LinearLR', start_factor=2e-3, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=10, end=300),
]  # fmt: skip
train_cfg = dict(max_epochs=310)
custom_hooks = [dict(type='EMAHook', momentum=4e-5, priority='ABOVE_NORMAL')]
auto_scale_lr = dict(base_batch_size=512)
