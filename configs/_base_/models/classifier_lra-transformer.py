"""The Transformer of Long-Range Arena for ListOps: 6 layers, 512 channels, 8 heads, a class token.

Its config had 6 layers and 2048 channels in the feed-forward networks until 22 March 2021 (commit 8d3dc39), then 4 and
1024. DTN (ICLR 2022, appendix B.1) names 512 channels, 8 heads and 6 layers.
"""

model = dict(
    type='ImageClassifier',
    backbone=dict(
        type='mmlape.SequenceTransformer',
        arch='lra-listops',
        vocab_size=16,
        out_type='cls_token',
        attention=dict(proj_bias=False),
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
