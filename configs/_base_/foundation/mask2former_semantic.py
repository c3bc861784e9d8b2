"""Mask2Former on ADE20K at 512 x 512: 40,000 iterations (31 epochs), 8 GPUs x 2 images.

A row adds backbone and channels.
"""

_base_ = ['./mask2former.py', '../datasets/ade20k.py', '../default_runtime_mmseg.py']

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
    decode_head=dict(
        _base_.mask2former,
        type='mmlape.Mask2FormerSegHead',
        num_classes=num_classes,
        num_queries=100,
        align_corners=False,
        loss_cls=dict(_base_.loss_cls, class_weight=[1.0] * num_classes + [0.1]),
        train_cfg=_base_.matching,
    ),
    train_cfg=dict(),
    test_cfg=dict(mode='slide', crop_size=(512, 512), stride=(341, 341)),
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(type='PolyLR', eta_min=0.0, power=0.9, begin=1500, end=max_iters, by_epoch=False),
]
train_cfg = dict(type='IterBasedTrainLoop', max_iters=max_iters, val_interval=5000)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
default_hooks = dict(checkpoint=dict(interval=5000))
