"""ISPRS Potsdam (6 classes) with crops of 512 x 512, 1 image per GPU, as published for ViT-Adapter."""

_base_ = './ade20k_multiple-of-32.py'

data_from = 'Potsdam is to be prepared (configs/vit_adapter/README.md)'
crop_size = (512, 512)
stride = (341, 341)
num_classes = 6

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (2048, 512)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (2048, 512)
dataset = dict(type='PotsdamDataset', data_root='data/potsdam')
train_dataloader = dict(
    batch_size=1,
    dataset=dict(
        dataset,
        data_prefix=dict(_delete_=True, img_path='img_dir/train', seg_map_path='ann_dir/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(_delete_=True, img_path='img_dir/val', seg_map_path='ann_dir/val'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
