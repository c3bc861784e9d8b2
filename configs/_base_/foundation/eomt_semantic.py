"""EoMT on ADE20K at 512 x 512: 40,000 iterations (31 epochs), 8 GPUs x 2 images. A row adds the ViT.

Longer sides of training images are 256 to 1024.
"""

_base_ = ['./eomt.py', '../datasets/ade20k.py', '../default_runtime_mmseg.py']

custom_imports = dict(imports=['mmlape', 'mmdet.models'], allow_failed_imports=False)
max_iters = 40000
num_classes = 150
model = dict(
    type='EncoderDecoder',
    data_preprocessor=dict(
        type='SegDataPreProcessor',
        bgr_to_rgb=True,
        pad_val=0,
        seg_pad_val=255,
        size=(512, 512),
    ),
    backbone=dict(
        type='mmlape.EoMT', num_classes=num_classes, num_queries=100, num_blocks=3, vit=dict()
    ),
    decode_head=dict(type='mmlape.EoMTSegHead', num_classes=num_classes),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
load, annotations, _, _, *rest = _base_.train_pipeline
train_pipeline = [
    *(load, annotations),
    dict(type='RandomResize', scale=(512, 512), ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=(512, 512)),
    *rest,
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
del load, annotations, rest, _
param_scheduler = [
    dict(type='mmlape.TwoStagePolyLR', warmup=(500, 1000), end=max_iters, by_epoch=False)
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=5000))
