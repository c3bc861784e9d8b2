"""Swin-T as a classifier of the mean of its last map."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.SwinTransformer',
        arch='tiny',
        img_size=224,
        out_type='avg',
        out_indices=3,
        drop_path_rate=0.2,
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=1000,
        in_channels=768,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
