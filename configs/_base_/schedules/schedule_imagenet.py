"""DeiT's 300 epochs, which LaPE (arXiv v1, Table 7) and DTN (ICLR 2022, appendix B.1) follow.

AdamW, weight decay 0.05, 5 epochs of warm-up, cosine to 1e-5. The learning rate of both tables, 5e-4, is DeiT's, which
its code multiplies by the batch size over 512: 1e-3 for 1024 images. LaPE's other column is epoch 100 of these 300.
"""

optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=5e-4 * 1024 / 512, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        norm_decay_mult=0.0,
        bias_decay_mult=0.0,
        flat_decay_mult=0.0,
        custom_keys={
            # position tables and what joins them, in a ViT and in the stages of PVT; DTN's position maps
            'position': dict(decay_mult=0.0),
            'cls_token': dict(decay_mult=0.0),
            'dist_token': dict(decay_mult=0.0),
        },
    ),
)

param_scheduler = [
    # from 1e-6
    dict(type='LinearLR', start_factor=1e-3, by_epoch=True, begin=0, end=5, convert_to_iter_based=True),
    dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True, begin=5),
]  # fmt: skip

train_cfg = dict(by_epoch=True, max_epochs=300, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=1024)
