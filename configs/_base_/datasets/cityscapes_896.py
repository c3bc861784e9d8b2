"""Cityscapes (19 classes) with crops of 896 x 896, 16 GPUs x 1 image, as published for ViT-Adapter."""

_base_ = './ade20k.py'

data_from = 'Cityscapes is to be prepared (configs/vit_adapter/README.md)'
crop_size = (896, 896)
stride = (512, 512)
num_classes = 19

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (2048, 1024)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (2048, 1024)
dataset = dict(type='CityscapesDataset', data_root='data/cityscapes')
train_dataloader = dict(
    batch_size=1,
    dataset=dict(
        dataset,
        data_prefix=dict(_delete_=True, img_path='leftImg8bit/train', seg_map_path='gtFine/train'),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(_delete_=True, img_path='leftImg8bit/val', seg_map_path='gtFine/val'),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
