"""COCO-Stuff 10k (171 classes) with crops of 512 x 512. Labels count from 1, those of COCO-Stuff 164k from 0."""

_base_ = './ade20k_multiple-of-32.py'

data_from = 'COCO-Stuff 10k is to be prepared (configs/vit_adapter/README.md)'
crop_size = (512, 512)
stride = (341, 341)
num_classes = 171

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (2048, 512)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (2048, 512)
dataset = dict(type='COCOStuffDataset', data_root='data/coco_stuff10k', reduce_zero_label=True)
train_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/train2014', seg_map_path='annotations/train2014'
        ),
        pipeline=train_pipeline,
    )
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/test2014', seg_map_path='annotations/test2014'
        ),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
