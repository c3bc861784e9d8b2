"""Mask2Former on COCO's things and stuff at 640 x 640: 12 epochs, 8 GPUs x 2 images. A row adds backbone and channels.

The data set is read and scored by MMDetection's parts, which need panopticapi (docs/panoptic.md).
"""

_base_ = './mask2former_instance.py'

num_stuff_classes = 53
num_classes = _base_.num_classes + num_stuff_classes
model = dict(
    data_preprocessor=dict(
        mask_pad_value=0,
        pad_seg=True,
        seg_pad_value=255,
        batch_augments=[
            dict(
                _base_.model.data_preprocessor.batch_augments[0],
                img_pad_value=0,
                mask_pad_value=0,
                pad_seg=True,
                seg_pad_value=255,
            )
        ],
    ),
    panoptic_head=dict(
        num_stuff_classes=num_stuff_classes,
        loss_cls=dict(class_weight=[1.0] * num_classes + [0.1]),
    ),
    panoptic_fusion_head=dict(num_stuff_classes=num_stuff_classes),
    test_cfg=dict(panoptic_on=True, iou_thr=0.8, filter_low_score=True),
)

# MMEngine infers no rule for this name.
default_hooks = dict(checkpoint=dict(save_best='coco_panoptic/PQ', rule='greater'))
load = dict(type='LoadPanopticAnnotations', backend_args=_base_.backend_args)
# Boxes are those of the crops, so that no segment is dropped that is part of the label map.
train_pipeline = [
    load if step.type == 'LoadAnnotations' else step
    for step in _base_.train_pipeline
    if step.type != 'FilterAnnotations'
]
test_pipeline = [load if step.type == 'LoadAnnotations' else step for step in _base_.test_pipeline]
train_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_train2017.json',
        data_prefix=dict(seg='annotations/panoptic_train2017/'),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        type='CocoPanopticDataset',
        ann_file='annotations/panoptic_val2017.json',
        data_prefix=dict(seg='annotations/panoptic_val2017/'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del load

val_evaluator = [
    dict(
        type='CocoPanopticMetric',
        ann_file=_base_.data_root + 'annotations/panoptic_val2017.json',
        seg_prefix=_base_.data_root + 'annotations/panoptic_val2017/',
        backend_args=_base_.backend_args,
    ),
    _base_.val_evaluator,
]
test_evaluator = val_evaluator
