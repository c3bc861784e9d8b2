"""COCO's things and stuff at 640 x 640, by MMDetection's parts, which need panopticapi (configs/panoptic/README.md)."""

_base_ = './coco_instance_lsj-640.py'

num_stuff_classes = 53
# Of images, masks and label maps, for the model's data_preprocessor.
padding = dict(mask_pad_value=0, pad_seg=True, seg_pad_value=255)
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
