"""``coco_instance_lsj`` at 640 x 640; images are evaluated with a long side of 640."""

_base_ = './coco_instance_lsj.py'

image_size = (640, 640)
load, annotations, flip, resize, crop, *rest = _base_.train_pipeline
train_pipeline = [
    *(load, annotations, flip),
    dict(resize, scale=image_size),
    dict(crop, crop_size=image_size),
    *rest,
]
test_pipeline = [
    _base_.test_pipeline[0],
    dict(_base_.test_pipeline[1], scale=image_size),
    *_base_.test_pipeline[2:],
]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
del load, annotations, flip, resize, crop, rest
