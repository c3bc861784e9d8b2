"""UPerNet, AugReg ViT-Ti in ViT-Adapter-Ti. ADE20K, 160K iterations, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): mIoU 43.9.
"""

_base_ = [
    '../_base_/models/upernet.py',
    '../_base_/vit_adapter/augreg-t.py',
    '../_base_/datasets/ade20k_multiple-of-32.py',
    '../_base_/vit_adapter/runtime_160k.py',
]

model = dict(
    backbone=_base_.vit_adapter,
    decode_head=dict(in_channels=[_base_.dims] * 4),
    auxiliary_head=dict(in_channels=_base_.dims),
)
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=12e-5, betas=(0.9, 0.999), weight_decay=0.01),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(decay_rate=0.95),
)
auto_scale_lr = dict(enable=False, base_batch_size=16)
