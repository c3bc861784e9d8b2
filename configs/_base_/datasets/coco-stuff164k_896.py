"""COCO-Stuff 164k (171 classes) with crops of 896 x 896, 16 GPUs x 1 image, as published for ViT-Adapter."""

_base_ = './ade20k_multiple-of-32.py'

data_from = 'COCO-Stuff 164k is to be prepared (configs/vit_adapter/README.md)'
crop_size = (896, 896)
stride = (512, 512)
num_classes = 171

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (3584, 896)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (3584, 896)
dataset = dict(type='COCOStuffDataset', data_root='data/coco_stuff164k')
train_dataloader = dict(
    batch_size=1,
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/train2017', seg_map_path='annotations/train2017'
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/val2017', seg_map_path='annotations/val2017'
        ),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
