"""ImageNet-1K as in imagenet.py, but every image once an epoch, and 64 per GPU: as Swin and T2T-ViT were trained."""

_base_ = './imagenet.py'

train_dataloader = dict(
    batch_size=64, sampler=dict(_delete_=True, type='DefaultSampler', shuffle=True)
)
