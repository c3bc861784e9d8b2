"""``coco-stuff164k_640.py`` with crops of 896 x 896, 16 GPUs x 1 image."""

_base_ = './coco-stuff164k_640.py'

crop_size = (896, 896)
stride = (512, 512)

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (3584, 896)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (3584, 896)
train_dataloader = dict(batch_size=1, dataset=dict(pipeline=train_pipeline))
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
