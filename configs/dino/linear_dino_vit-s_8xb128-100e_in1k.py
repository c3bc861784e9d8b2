"""A linear classifier on the class token of the frozen ViT-S of dino_vit-s_8xb64-100e_in1k.

ImageNet-1K, 100 epochs, 8 GPUs x 128 images.

Published (DTN, ICLR 2022, Table 7): Top 1 Accuracy 74.0.
"""

_base_ = [
    '../_base_/datasets/imagenet_unrepeated.py',
    '../_base_/default_runtime_mmpretrain.py',
]

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.VisionTransformer',
        arch='deit-small',
        img_size=224,
        out_type='cls_token',
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
        frozen_stages=12,
        # The teacher of the pre-training.
        init_cfg=dict(
            type='mmlape.Pretrained',
            source='mmlape',
            checkpoint='work_dirs/dino_vit-s_8xb64-100e_in1k/epoch_100.pth',
            min_matched=1.0,
        ),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=384,
        loss=dict(type='CrossEntropyLoss', loss_weight=1.0),
    ),
)

train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='RandomResizedCrop', scale=224, backend='pillow'),
    dict(type='RandomFlip', prob=0.5, direction='horizontal'),
    dict(type='PackInputs'),
]
train_dataloader = dict(batch_size=128, dataset=dict(pipeline=train_pipeline))

# The defaults of DINO's code: 0.001 for each 256 images, and no weight decay.
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='SGD', lr=0.001 * 1024 / 256, momentum=0.9, weight_decay=0.0),
)
param_scheduler = dict(type='CosineAnnealingLR', eta_min=0.0, by_epoch=True, begin=0, end=100)
train_cfg = dict(by_epoch=True, max_epochs=100, val_interval=1)
val_cfg = dict()
test_cfg = dict()
auto_scale_lr = dict(enable=False, base_batch_size=1024)
