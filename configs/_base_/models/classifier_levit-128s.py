"""LeViT-128S as a classifier: one head, which begins with a batch norm, on the mean of the cells."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.LeViT',
        arch='levit-128s',
        img_size=224,
        out_type='avg',
        out_indices=2,
        norm_cfg=dict(type='mmlape.TokenBN'),
    ),
    head=dict(
        type='LeViTClsHead',
        num_classes=1000,
        in_channels=384,
        distillation=False,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
