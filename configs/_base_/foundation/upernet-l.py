"""``upernet.py`` by EVA-02-L's recipe: 80,000 iterations, 8 GPUs x 2 images."""

_base_ = './upernet.py'

max_iters = 80000
model = dict(backbone=dict(drop_path_rate=0.2))
optim_wrapper = dict(optimizer=dict(lr=4e-5), paramwise_cfg=dict(decay_rate=0.9))
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], end=max_iters),
]
train_dataloader = dict(batch_size=2)
train_cfg = dict(max_iters=max_iters)
auto_scale_lr = dict(base_batch_size=16)
