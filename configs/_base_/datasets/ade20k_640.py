"""ADE20K with crops of 640 x 640, as published for ViT-Adapter."""

_base_ = './ade20k_multiple-of-32.py'

crop_size = (640, 640)
stride = (426, 426)
num_classes = 150

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (2048, 640)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (2048, 640)
train_dataloader = dict(dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
