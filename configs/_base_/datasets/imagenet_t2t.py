"""ImageNet-1K for T2T-ViT: every image once an epoch, tests crop 224 pixels out of a short side of 248 (0.9)."""

_base_ = './imagenet_unrepeated.py'

test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='ResizeEdge', scale=248, edge='short', backend='pillow', interpolation='bicubic'),
    dict(type='CenterCrop', crop_size=224),
    dict(type='PackInputs'),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
