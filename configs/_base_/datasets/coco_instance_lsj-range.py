"""COCO 2017 boxes and masks, large-scale jitter of ViT-Adapter around MAE: crops of random sides, then flips."""

_base_ = './coco_instance_lsj.py'

load, annotations, flip, resize, crop, _, pack = _base_.train_pipeline
train_pipeline = [
    load,
    annotations,
    resize,
    dict(crop, crop_type='absolute_range'),
    dict(type='FilterAnnotations', min_gt_bbox_wh=(1e-2, 1e-2)),
    flip,
    pack,
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
del load, annotations, flip, resize, crop, _, pack
