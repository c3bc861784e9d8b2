"""ViT-Lite-7/4 as a classifier with a class token."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.CompactTransformer',
        arch='vit-lite-7-4',
        img_size=32,
        out_type='pooled',
        attn_drop_rate=0.1,
        drop_path_rate=0.1,
        joining=dict(type='mmlape.DefaultJoining'),
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
    ),
    head=dict(
        type='LinearClsHead',
        num_classes=100,
        in_channels=256,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
