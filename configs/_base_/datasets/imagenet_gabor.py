"""ImageNet-1K for position alone: 256 images per GPU, every image once an epoch, RandAugment 9/0.5 and no erasing.

Mixup and CutMix are in the models. The Gabor paper (section 5.1) names these three and no others of DeiT's.
"""

_base_ = './imagenet_unrepeated.py'

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow', interpolation='bicubic'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(
        type='RandAugment',
        policies='timm_increasing',
        num_policies=2,
        total_level=10,
        magnitude_level=9,
        magnitude_std=0.5,
        hparams=dict(pad_val=[104, 116, 124], interpolation='bicubic'),
    ),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=256, dataset=dict(pipeline=train_pipeline))
