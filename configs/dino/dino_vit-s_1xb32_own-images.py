"""DINO of ViT-S on a folder of own images, without labels: 16 epochs for some hundred to some thousand images.

There is no published figure for this row. docs/fine_tuning.md has what it gave with 831 images.
"""

_base_ = './dino_vit-s_8xb64-100e_in1k.py'

max_epochs = 16
model = dict(
    backbone=dict(img_size=128, drop_path_rate=0.0),
    # About as many prototypes as images, and a teacher that follows sooner: there are few steps.
    head=dict(out_channels=1024),
    momentum=0.99,
)

# Sides of 128 and 64 pixels: 64 and 16 tokens.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        type='MultiView',
        num_views=[1, 1, 4],
        transforms=[
            [dict(_base_.first_view[0], scale=128), *_base_.first_view[1:]],
            [dict(_base_.second_view[0], scale=128), *_base_.second_view[1:]],
            [dict(_base_.local_view[0], scale=64), *_base_.local_view[1:]],
        ],
    ),
    dict(type='PackInputs'),
]
train_dataloader = dict(
    batch_size=32,
    num_workers=1,
    dataset=dict(
        _delete_=True,
        type='CustomDataset',
        data_root='data/own',
        with_label=False,
        pipeline=train_pipeline,
    ),
)
# There are no labels for k-NN.
val_dataloader = val_evaluator = val_cfg = None
test_dataloader = test_evaluator = test_cfg = None
custom_hooks = [dict(type='mmlape.DINOGradientsHook', max_norm=3.0, freeze_last_layer=1)]

optim_wrapper = dict(optimizer=dict(lr=5e-4))
by_iter = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(by_iter, type='LinearLR', start_factor=1e-6, begin=0, end=2),
    dict(by_iter, type='CosineAnnealingLR', eta_min=1e-6, begin=2, end=max_epochs),
    dict(by_iter, type='CosineAnnealingWeightDecay', eta_min=0.4, begin=0, end=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs)
auto_scale_lr = dict(base_batch_size=32)
default_hooks = dict(checkpoint=dict(interval=4, max_keep_ckpts=2))
