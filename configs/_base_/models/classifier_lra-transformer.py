"""The Transformer of Long-Range Arena for ListOps: 6 layers, 512 channels, 8 heads, a class token."""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.SequenceTransformer',
        arch='lra-listops',
        vocab_size=16,
        out_type='cls_token',
        drop_rate=0.1,
        attn_drop_rate=0.1,
        norm_cfg=dict(type='mmlape.LN', eps=1e-6),
    ),
    head=dict(
        type='StackedLinearClsHead',
        num_classes=10,
        in_channels=512,
        mid_channels=[2048],
        loss=dict(type='CrossEntropyLoss'),
    ),
)
