"""Mask2Former at 640 x 640: 12 epochs, 8 GPUs x 2 images. The data set is added to it."""

_base_ = ['./mask2former.py', '../default_runtime_mmdet.py']

max_epochs = 12
num_classes = 80
model = dict(
    type='Mask2Former',
    data_preprocessor=dict(
        type='DetDataPreprocessor',
        bgr_to_rgb=True,
        pad_size_divisor=32,
        pad_mask=True,
        batch_augments=[dict(type='BatchFixedSizePad', size=(640, 640), pad_mask=True)],
    ),
    panoptic_head=dict(
        _base_.mask2former,
        type='mmlape.Mask2FormerHead',
        num_things_classes=num_classes,
        num_stuff_classes=0,
        num_queries=200,
        loss_cls=dict(_base_.loss_cls, class_weight=[1.0] * num_classes + [0.1]),
    ),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_classes,
        num_stuff_classes=0,
        loss_panoptic=None,
        init_cfg=None,
    ),
    train_cfg=_base_.matching,
    test_cfg=dict(panoptic_on=False, semantic_on=False, instance_on=True, max_per_image=100),
    init_cfg=None,
)
param_scheduler = [
    dict(type='LinearLR', start_factor=1e-6, by_epoch=False, begin=0, end=1500),
    dict(
        type='PolyLR',
        eta_min=0.0,
        power=0.9,
        begin=0,
        end=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True,
    ),
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
