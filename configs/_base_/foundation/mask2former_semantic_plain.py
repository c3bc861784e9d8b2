"""``mask2former_semantic.py` on the last map of a plain ViT, made four by ViTDet's simple feature pyramid."""

_base_ = './mask2former_semantic.py'

model = dict(
    neck=dict(type='mmlape.SimpleFeaturePyramid', out_channels=256),
    decode_head=dict(in_channels=[256] * 4),
)
