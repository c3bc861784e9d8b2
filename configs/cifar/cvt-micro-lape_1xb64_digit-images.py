"""A CVT of 3 layers and 64 channels with LaPE, on digits that are made on the spot: does everything learn? Minutes.

There is no published figure for this row.
"""

_base_ = './cvt-7-4-lape_1xb128_cifar10.py'

max_epochs = 20
data_preprocessor = dict(mean=[80, 80, 80], std=[70, 70, 70])
model = dict(
    backbone=dict(arch=dict(_delete_=True, embed_dims=64, depth=3, num_heads=4, mlp_ratio=2)),
    head=dict(in_channels=64),
    train_cfg=dict(_delete_=True),  # no Mixup, no CutMix
)

digits = dict(_delete_=True, type='mmlape.DigitImages')
# Digits are no digits when mirrored.
train_pipeline = [dict(type='RandomCrop', crop_size=32, padding=3), dict(type='PackInputs')]
test_pipeline = [dict(type='PackInputs')]
# The images are in memory.
loading = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(
    loading, batch_size=64, dataset=dict(digits, split='train', pipeline=train_pipeline)
)
val_dataloader = dict(loading, dataset=dict(digits, split='val', pipeline=test_pipeline))
test_dataloader = val_dataloader

optim_wrapper = dict(optimizer=dict(lr=2e-3))
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=True, begin=0, end=2, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=2, end=max_epochs),
]  # fmt: skip
train_cfg = dict(max_epochs=max_epochs, val_interval=5)
auto_scale_lr = dict(base_batch_size=64)
custom_hooks = []
randomness = dict(seed=0)
