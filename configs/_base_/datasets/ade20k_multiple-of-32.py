"""ADE20K as in ``ade20k.py``; images are evaluated at sizes that are multiples of 32, as published for ViT-Adapter."""

_base_ = './ade20k.py'

to_multiple = dict(type='ResizeToMultiple', size_divisor=32)
test_pipeline = [*_base_.test_pipeline[:2], to_multiple, *_base_.test_pipeline[2:]]
scales, *others = _base_.tta_pipeline[1].transforms
tta_pipeline = [
    _base_.tta_pipeline[0],
    dict(type='TestTimeAug', transforms=[scales, [to_multiple], *others]),
]
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
del to_multiple, scales, others
