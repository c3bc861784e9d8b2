"""CIFAR-10 as CIFAR-100, with its own mean and deviation, and without random erasing, as in the published config of 300
epochs; RandAugment pads with CIFAR-100's mean."""

_base_ = './cifar100.py'

data_preprocessor = dict(
    num_classes=10, mean=[125.307, 122.961, 113.8575], std=[62.985, 62.0925, 66.708]
)
train_pipeline = [step for step in _base_.train_pipeline if step.type != 'RandomErasing']
cifar10 = dict(type='CIFAR10', data_root='data/cifar10')
train_dataloader = dict(dataset=dict(cifar10, pipeline=train_pipeline))
val_dataloader = dict(dataset=cifar10)
test_dataloader = dict(dataset=cifar10)
