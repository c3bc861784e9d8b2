"""Pascal Context (59 classes, without background) with crops of 480 x 480."""

_base_ = './ade20k_multiple-of-32.py'

data_from = 'Pascal Context is to be prepared (configs/vit_adapter/README.md)'
crop_size = (480, 480)
stride = (320, 320)
num_classes = 59

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (520, 520)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (4096, 520)
dataset = dict(type='PascalContextDataset59', data_root='data/VOCdevkit/VOC2010')
train_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='JPEGImages', seg_map_path='SegmentationClassContext'
        ),
        ann_file='ImageSets/SegmentationContext/train.txt',
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='JPEGImages', seg_map_path='SegmentationClassContext'
        ),
        ann_file='ImageSets/SegmentationContext/val.txt',
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
