"""The 310 epochs of LaPE (arXiv v1, Table 7) on CIFAR-100, which are those of Compact Transformers (arXiv 2021, code).

AdamW 6e-4, weight decay 0.06, 128 images, 10 epochs of warm-up from 1e-6, cosine to 1e-5 until epoch 300, 10 more
there. Appendix D of v1 says SGD; its learning rates are those of the published configs, which have AdamW.
"""

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-4, betas=(0.9, 0.999), weight_decay=0.06),
    # Position tables and the class token decay, as published.
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0, flat_decay_mult=0.0),
)

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6 / 6e-4, by_epoch=True, begin=0, end=10, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=10, end=300),
]  # fmt: skip

train_cfg = dict(by_epoch=True, max_epochs=310, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=128)
