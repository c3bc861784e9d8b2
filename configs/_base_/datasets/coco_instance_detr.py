"""COCO 2017 boxes and masks with the multi-scale augmentation of DETR, as published for Swin.

It is ``coco_instance_ms`` without the last crop.
"""

_base_ = './coco_instance_ms.py'

train_pipeline = [*_base_.train_pipeline[:4], _base_.train_pipeline[-1]]
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
