"""Position alone for 50 epochs (Gabor position encoding, section 5.1): 512 images a step, cosine from 1e-3 to 1e-5,
weight decay 0.05, no warm-up. As in DeiT, positions do not decay, so nothing does here."""

_base_ = './schedule_imagenet.py'

optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True)]
train_cfg = dict(max_epochs=50)
custom_hooks = [dict(type='mmlape.PositionOnlyHook')]
auto_scale_lr = dict(base_batch_size=512)
