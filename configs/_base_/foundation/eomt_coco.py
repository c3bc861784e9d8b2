"""EoMT at 640 x 640: 12 epochs, 8 GPUs x 2 images. The data set is added to it."""

_base_ = ['./eomt.py', '../default_runtime_mmdet.py']

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
    backbone=dict(
        type='mmlape.EoMT', num_classes=num_classes, num_queries=200, num_blocks=3, vit=dict()
    ),
    panoptic_head=dict(type='mmlape.EoMTHead', num_things_classes=num_classes),
    panoptic_fusion_head=dict(
        type='MaskFormerFusionHead',
        num_things_classes=num_classes,
        num_stuff_classes=0,
        loss_panoptic=None,
        init_cfg=None,
    ),
    test_cfg=dict(panoptic_on=False, semantic_on=False, instance_on=True, max_per_image=100),
    init_cfg=None,
)
param_scheduler = [
    dict(
        type='mmlape.TwoStagePolyLR',
        warmup=(500, 1000),
        end=max_epochs,
        by_epoch=True,
        convert_to_iter_based=True,
    )
]
train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=max_epochs, val_interval=1)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
