"""DINO of a ViT of 4 layers and 64 channels with DTN, on digits that are made on the spot, without a GPU.

There is no published figure for this row.
"""

_base_ = './dino_vit-s-star-dtn_8xb64-100e_in1k.py'

max_epochs = 16
data_preprocessor = dict(mean=[60, 60, 60], std=[70, 70, 70], to_rgb=False)
model = dict(
    backbone=dict(
        arch=dict(_delete_=True, embed_dims=64, depth=4, num_heads=4, mlp_ratio=2),
        img_size=32,
        patch_size=8,
        drop_path_rate=0.0,
        # Wider than 0.02, which leaves little of the image in so few channels.
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.12),
    ),
    head=dict(in_channels=64, out_channels=128, hidden_channels=256, bottleneck_channels=64),
    # Sharper than 0.04: what so small a network says of two images differs little at first. With so few steps the
    # centre must follow at once, or one prototype is named for all images until it does.
    criterion=dict(teacher_temperature=0.01, centre_momentum=0.3),
    momentum=0.99,
)

# Digits are no digits when mirrored, and their colours say nothing: images are grey. Views are wide: a stroke alone is
# part of many digits.
grey = dict(type='RandomGrayscale', prob=1.0, keep_channels=True)
light = dict(type='ColorJitter', brightness=0.2, contrast=0.2, backend='cv2')
crop = dict(type='RandomResizedCrop', aspect_ratio_range=(0.85, 1.18), backend='cv2')
global_view = [dict(crop, scale=32, crop_ratio_range=(0.7, 1.0)), light]
local_view = [dict(crop, scale=16, crop_ratio_range=(0.4, 0.8)), light]
train_pipeline = [
    grey,
    dict(type='MultiView', num_views=[2, 2], transforms=[global_view, local_view]),
    dict(type='PackInputs'),
]
test_pipeline = [grey, dict(type='PackInputs')]
# Photographs and places are easier things to recognise an image by.
digits = dict(_delete_=True, type='mmlape.DigitImages', photographs=False, whole=True)
# The images are in memory.
loading = dict(num_workers=0, persistent_workers=False)
train_dataloader = dict(loading, dataset=dict(digits, split='train', pipeline=train_pipeline))
val_dataloader = dict(loading, dataset=dict(digits, split='val', pipeline=test_pipeline))
test_dataloader = val_dataloader
known = dict(
    loading,
    batch_size=128,
    sampler=dict(type='DefaultSampler', shuffle=False),
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        type='mmlape.DigitImages',
        photographs=False,
        whole=True,
        split='train',
        pipeline=test_pipeline,
    ),
)
custom_hooks = [
    dict(type='mmlape.DINOGradientsHook', max_norm=3.0, freeze_last_layer=1),
    dict(type='mmlape.KNNHook', dataloader=known),
]

optim_wrapper = dict(optimizer=dict(lr=1e-3))
by_iter = dict(by_epoch=True, convert_to_iter_based=True)
param_scheduler = [
    dict(by_iter, type='LinearLR', start_factor=1e-3, begin=0, end=3),
    dict(by_iter, type='CosineAnnealingLR', eta_min=1e-5, begin=3, end=max_epochs),
    dict(by_iter, type='CosineAnnealingWeightDecay', eta_min=0.1, begin=0, end=max_epochs),
]
train_cfg = dict(max_epochs=max_epochs, val_interval=2)
auto_scale_lr = dict(base_batch_size=64)
default_hooks = dict(checkpoint=dict(interval=4, max_keep_ckpts=2), logger=dict(interval=11))
randomness = dict(seed=0)
