"""160,000 iterations of SGD with polynomial decay, batch 8 x 1 (the schedule of Segmenter)."""

max_iters = 160000
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=16000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='PolyLR', eta_min=1e-4, power=0.9, begin=0, end=max_iters, by_epoch=False)
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=1e-3, momentum=0.9, weight_decay=0.0),
)
# 8 GPUs x 1 image; `--cfg-options auto_scale_lr.enable=True` scales the learning rate for another batch size.
auto_scale_lr = dict(enable=False, base_batch_size=8)
