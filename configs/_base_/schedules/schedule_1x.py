"""12 epochs over COCO with AdamW, batch 8 x 2; the weight decay spares norms, biases and embeddings.

``norm`` and ``bias`` are matched by name, as in the published ViT-Adapter recipe.
"""

max_epochs = 12
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')

param_scheduler = [
    dict(type='LinearLR', start_factor=0.001, by_epoch=False, begin=0, end=500),
    dict(type='MultiStepLR', begin=0, end=max_epochs, by_epoch=True, milestones=[8, 11], gamma=0.1),
]
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys={
            'level_embed': dict(decay_mult=0.0),
            'pos_embed': dict(decay_mult=0.0),
            'position': dict(decay_mult=0.0),  # embeddings without a table, joining
            'cls_token': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
            'bias': dict(decay_mult=0.0),
        }
    ),
)
# 8 GPUs x 2 images; `--auto-scale-lr` scales the learning rate for another batch size.
auto_scale_lr = dict(enable=False, base_batch_size=16)
