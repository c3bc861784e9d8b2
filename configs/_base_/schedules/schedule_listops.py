"""Long-Range Arena's schedule for ListOps: 5000 iterations of 32, Adam with decoupled weight decay, of everything.

The learning rate is 0.05 min(1, t / 1000) / sqrt(max(t, 1000)): at most 0.05 / sqrt(1000).
"""

max_iters = 5000
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(
        type='AdamW', lr=0.05 / 1000**0.5, betas=(0.9, 0.98), eps=1e-9, weight_decay=0.1
    ),
    # where DTN looks, and how much of it counts
    paramwise_cfg=dict(
        custom_keys={
            name: dict(decay_mult=0.0) for name in ('ratio_mean', 'ratio_var', '.positions.')
        }
    ),
)
param_scheduler = [dict(type='mmlape.RsqrtLR', warmup=1000, by_epoch=False)]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=500)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(base_batch_size=32)
