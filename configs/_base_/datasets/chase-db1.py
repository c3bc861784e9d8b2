"""CHASE DB1 (vessels of the retina) with crops of 128 x 128, 4 images per GPU."""

_base_ = './ade20k_multiple-of-32.py'

data_from = 'CHASE DB1 is to be prepared (configs/vit_adapter/README.md)'
crop_size = (128, 128)
stride = (85, 85)
num_classes = 2

train_pipeline = _base_.train_pipeline
train_pipeline[2].scale = (960, 999)
train_pipeline[3].crop_size = crop_size
test_pipeline = _base_.test_pipeline
test_pipeline[1].scale = (960, 999)
dataset = dict(type='ChaseDB1Dataset', data_root='data/CHASE_DB1')
train_dataloader = dict(
    batch_size=4,
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/training', seg_map_path='annotations/training'
        ),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    dataset=dict(
        dataset,
        data_prefix=dict(
            _delete_=True, img_path='images/validation', seg_map_path='annotations/validation'
        ),
        pipeline=test_pipeline,
    )
)
test_dataloader = val_dataloader
del dataset
val_evaluator = dict(iou_metrics=['mDice'])
test_evaluator = val_evaluator
