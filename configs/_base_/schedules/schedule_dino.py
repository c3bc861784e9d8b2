"""DINO's 100 epochs (the defaults of its code): AdamW, 10 epochs of warm-up to 5e-4 for each 256 images, cosine to
1e-6; weight decay along a cosine from 0.04 to 0.4, none of biases and norms."""

max_epochs = 100
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4 * 512 / 256, betas=(0.9, 0.999), weight_decay=0.04),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        # DTN's position maps, which are those of a norm; what joins positions (LaPE)
        custom_keys={'positions': dict(decay_mult=0.0), 'joining': dict(decay_mult=0.0)},
    ),
)
by_iter = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(by_iter, type='LinearLR', start_factor=1e-6, begin=0, end=10),
    dict(by_iter, type='CosineAnnealingLR', eta_min=1e-6, begin=10, end=max_epochs),
    dict(by_iter, type='CosineAnnealingWeightDecay', eta_min=0.4, begin=0, end=max_epochs),
]
train_cfg = dict(by_epoch=True, max_epochs=max_epochs, val_interval=20)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=512)
