"""40,000 iterations, in the place of ``runtime_160k.py``."""

_base_ = './runtime_160k.py'

max_iters = 40000
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], end=max_iters)]
train_cfg = dict(max_iters=max_iters, val_interval=4000)
default_hooks = dict(checkpoint=dict(interval=4000))
