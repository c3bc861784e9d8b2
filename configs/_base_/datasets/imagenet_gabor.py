"""ImageNet-1K for position alone: 256 images per GPU, every image once an epoch, RandAugment 9/0.5 and no erasing.

Mixup and CutMix are in the models. The Gabor paper (section 5.1) names these three and no others of DeiT's.
"""

_base_ = './imagenet_unrepeated.py'

train_pipeline = [step for step in _base_.train_pipeline if step.type != 'RandomErasing']
train_dataloader = dict(batch_size=256, dataset=dict(pipeline=train_pipeline))
