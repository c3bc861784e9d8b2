# Digit scenes, digits as things and the background as stuff; read and scored without panopticapi.
_base_ = './digit-scenes_instance.py'

things = _base_.metainfo.classes
metainfo = dict(
    classes=[*things, 'background'],
    thing_classes=things,
    stuff_classes=['background'],
    palette=[*_base_.metainfo.palette, (0, 0, 0)],
)
maps = dict(type='mmlape.LoadPanopticMap')
train_pipeline = [
    maps if step.type == 'LoadAnnotations' else step for step in _base_.train_pipeline
]
test_pipeline = [maps if step.type == 'LoadAnnotations' else step for step in _base_.test_pipeline]
digits = dict(type='CocoPanopticDataset', metainfo=dict(metainfo, _delete_=True))
train_dataloader = dict(
    dataset=dict(
        digits,
        ann_file='annotations/panoptic_train.json',
        data_prefix=dict(seg='annotations/panoptic_train/'),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        digits,
        ann_file='annotations/panoptic_val.json',
        data_prefix=dict(seg='annotations/panoptic_val/'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del things, maps, digits

val_evaluator = dict(
    _delete_=True,
    type='mmlape.PanopticQuality',
    ann_file=_base_.data_root + 'annotations/panoptic_val.json',
    seg_prefix=_base_.data_root + 'annotations/panoptic_val/',
)
test_evaluator = val_evaluator
