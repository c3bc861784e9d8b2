"""160,000 iterations of AdamW with a linear decay after a warm-up, batch 8 x 2 (the schedule of UPerNet on Swin)."""

_base_ = './schedule_160k.py'

param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=1.0, begin=1500, end=160000, by_epoch=False),
]
optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=6e-5, betas=(0.9, 0.999), weight_decay=0.01),
    paramwise_cfg=dict(
        custom_keys={
            'pos_embed': dict(decay_mult=0.0),
            'relative_position_bias_table': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
        }
    ),
)
# 8 GPUs x 2 images; `--cfg-options auto_scale_lr.enable=True` scales the learning rate for another batch size.
auto_scale_lr = dict(base_batch_size=16)
