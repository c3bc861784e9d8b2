"""SegFormer's head for ADE20K, under a name of its own: ``segformer``. A config adds ``in_channels``, of four maps."""

segformer = dict(
    type='SegformerHead',
    in_index=[0, 1, 2, 3],
    channels=256,
    dropout_ratio=0.1,
    num_classes=150,
    norm_cfg=dict(type='SyncBN', requires_grad=True),
    align_corners=False,
    loss_decode=dict(type='CrossEntropyLoss', use_sigmoid=False, loss_weight=1.0),
)
