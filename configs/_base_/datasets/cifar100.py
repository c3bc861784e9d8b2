"""CIFAR-100 at 32 x 32 with the augmentation of Compact Transformers (arXiv 2021, code), 128 images per GPU.

RandAugment 9/0.5 and random erasing 0.25 (since commit 6bd53cc, September 2021) are here; Mixup 0.8, CutMix 1.0 and
label smoothing 0.1 are in the models. Tests see whole images.
"""

data_from = 'docs/data.md says how to get CIFAR-10 and CIFAR-100'
# Images are RGB from the start, unlike those that are read from files.
rgb_mean, rgb_std = [129.304, 124.070, 112.434], [68.170, 65.392, 70.418]
data_preprocessor = dict(num_classes=100, mean=rgb_mean, std=rgb_std, to_rgb=False)

train_pipeline = [
    dict(
        type='RandomResizedCrop',
        scale=32,
        crop_ratio_range=(0.8, 1.0),
        backend='pillow',
        interpolation='bicubic',
    ),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[129, 124, 112], interpolation='bicubic'),
    ),
    dict(
        type='RandomErasing',
        erase_prob=0.25,
        mode='rand',
        min_area_ratio=0.02,
        max_area_ratio=1 / 3,
        fill_color=rgb_mean,
        fill_std=rgb_std,
    ),
    dict(type='PackInputs'),
]
test_pipeline = [dict(type='PackInputs')]

train_dataloader = dict(
    batch_size=128,
    num_workers=8,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset=dict(
        type='CIFAR100',
        data_root='data/cifar100',
        split='train',
        download=False,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=128,
    num_workers=4,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='CIFAR100',
        data_root='data/cifar100',
        split='test',
        download=False,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(type='Accuracy', topk=(1, 5))
test_evaluator = val_evaluator
