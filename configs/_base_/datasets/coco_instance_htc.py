"""COCO 2017 boxes, masks and COCO-Stuff's label maps, with the multi-scale augmentation of HTC++: short sides of 400 to
1400 pixels in training, 1400 in tests. 16 GPUs x 1 image."""

_base_ = './coco_instance.py'

data_from = 'COCO 2017 and its stuffthingmaps are to be downloaded (configs/vit_adapter/README.md)'
train_pipeline = [
    dict(type='LoadImageFromFile', backend_args=_base_.backend_args),
    dict(type='LoadAnnotations', with_bbox=True, with_mask=True, with_seg=True),
    dict(type='RandomResize', scale=[(1600, 400), (1600, 1400)], keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (1600, 1400)
train_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(img='train2017/', seg='stuffthingmaps/train2017/'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(dataset=dict(pipeline=test_pipeline))
test_dataloader = val_dataloader
