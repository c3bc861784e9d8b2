"""CIFAR-10 as CIFAR-100, with its own mean and deviation; what RandAugment pads with is CIFAR-100's mean."""

_base_ = './cifar100.py'

data_preprocessor = dict(
    num_classes=10, mean=[125.307, 122.961, 113.8575], std=[51.5865, 50.847, 51.255]
)
cifar10 = dict(type='CIFAR10', data_root='data/cifar10')
train_dataloader = dict(dataset=cifar10)
val_dataloader = dict(dataset=cifar10)
test_dataloader = dict(dataset=cifar10)
