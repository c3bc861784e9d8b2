"""UPerNet with the optimizer of ViT-Adapter-L around BEiT: learning rates fall by 0.9 per layer.

A row adds backbone, channels, classes and crops; 8 GPUs x 2 images.
"""

_base_ = '../models/upernet.py'

model = dict(decode_head=dict(channels=1024))
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=2e-5, betas=(0.9, 0.999), weight_decay=0.05),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(decay_rate=0.9),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
