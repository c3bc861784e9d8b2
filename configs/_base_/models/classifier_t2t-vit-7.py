"""T2T-ViT-7 as a classifier with a class token."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.T2TViT',
        arch='t2t-vit-7',
        img_size=224,
        out_type='cls_token',
        drop_path_rate=0.1,
        joining=dict(type='mmlape.DefaultJoining'),
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
    ),
    head=dict(
        type='VisionTransformerClsHead',
        num_classes=1000,
        in_channels=256,
        loss=dict(type='LabelSmoothLoss', label_smooth_val=0.1, mode='original'),
        init_cfg=dict(type='TruncNormal', layer='Linear', std=0.02),
    ),
    train_cfg=dict(augments=[dict(type='Mixup', alpha=0.8), dict(type='CutMix', alpha=1.0)]),
)
