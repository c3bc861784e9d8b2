"""A Transformer of 2 layers and 64 channels on short ListOps (10 to 200 tokens): does everything learn?

There is no published figure for this row. tools/experiments/list_ops.py replaces the norm (configs/listops/README.md).
"""

_base_ = './listops_transformer.py'

max_iters = 100
data_root = 'data/list_ops_short'
data_from = '`mmlape experiment list_ops` makes them (configs/listops/README.md)'
dims = 64
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=dims, depth=2, num_heads=4, mlp_ratio=2),
        drop_rate=0.0,
        attn_drop_rate=0.0,
    ),
    head=dict(in_channels=dims, mid_channels=[2 * dims]),
)
# The files are small.
loading = dict(num_workers=0, persistent_workers=False, dataset=dict(data_root=data_root))
train_dataloader = loading
val_dataloader = dict(loading, batch_size=100)
test_dataloader = val_dataloader
optim_wrapper = dict(optimizer=dict(lr=3e-3, eps=1e-8, weight_decay=0.05))
param_scheduler = [dict(type='mmlape.RsqrtLR', warmup=40, by_epoch=False)]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
# The result is a number; weights are not kept.
default_hooks = dict(checkpoint=None)
