"""ImageNet-1K as DINO sees it (the defaults of its code), 64 images per GPU: two global crops of 224 pixels and eight
local ones of 96. Validation and test ask the nearest neighbours (mmlape.KNNHook)."""

data_from = 'docs/pretraining.md says how to get ImageNet-1K'
data_preprocessor = dict(
    type='SelfSupDataPreprocessor',
    mean=[123.675, 116.28, 103.53],
    std=[58.395, 57.12, 57.375],
    to_rgb=True,
)

bicubic = dict(backend='pillow', interpolation='bicubic')
crop_of_many = dict(type='RandomResizedCrop', scale=224, crop_ratio_range=(0.4, 1.0), **bicubic)
crop_of_little = dict(type='RandomResizedCrop', scale=96, crop_ratio_range=(0.05, 0.4), **bicubic)
colours = [
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandomApply',
        transforms=[
            dict(type='ColorJitter', brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
        ],
        prob=0.8,
    ),
    dict(
        type='RandomGrayscale',
        prob=0.2,
        keep_channels=True,
        channel_weights=(0.114, 0.587, 0.2989),
    ),
]
blur = dict(type='GaussianBlur', magnitude_range=(0.1, 2.0), magnitude_std='inf')
first_view = [crop_of_many, *colours, dict(blur, prob=1.0)]
second_view = [
    crop_of_many, *colours, dict(blur, prob=0.1), dict(type='Solarize', thr=128, prob=0.2),
]  # fmt: skip
local_view = [crop_of_little, *colours, dict(blur, prob=0.5)]

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='MultiView', num_views=[1, 1, 8], transforms=[first_view, second_view, local_view]),
    dict(type='PackInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=256, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]

imagenet = dict(type='ImageNet', data_root='data/imagenet')
loading = dict(num_workers=10, persistent_workers=True, collate_fn=dict(type='default_collate'))
in_order = dict(loading, batch_size=128, sampler=dict(type='DefaultSampler', shuffle=False))
train_dataloader = dict(
    loading,
    batch_size=64,
    drop_last=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(imagenet, split='train', pipeline=train_pipeline),
)
val_dataloader = dict(in_order, dataset=dict(imagenet, split='val', pipeline=test_pipeline))
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
knn_dataloader = dict(in_order, dataset=dict(imagenet, split='train', pipeline=test_pipeline))
