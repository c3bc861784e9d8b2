"""The schedule of DINO, the detector: 12 epochs with AdamW, clipped gradients, rates of the backbone by layer.

Published configs multiply the rate of the whole backbone by 0.1. The decay of 0.7 is that of our other rows on ViT-S.
"""

max_epochs = 12
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[11], gamma=0.1),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, weight_decay=1e-4),
    clip_grad=dict(max_norm=0.1, norm_type=2),
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(decay_rate=0.7),
)
# Deformable attention of the head in every precision, without waiting for the GPU.
custom_hooks = [dict(type='mmlape.DeformableAttentionHook')]
# 8 GPUs x 2 images; `--auto-scale-lr` scales the learning rate for another batch size.
auto_scale_lr = dict(base_batch_size=16)
