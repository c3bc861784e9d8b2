"""DINO on maps of strides 4 to 64: the backbone gives all four of its maps."""

_base_ = './dino_4scale.py'

model = dict(
    num_feature_levels=5,
    neck=dict(num_outs=5),
    encoder=dict(layer_cfg=dict(self_attn_cfg=dict(num_levels=5))),
    decoder=dict(layer_cfg=dict(cross_attn_cfg=dict(num_levels=5))),
)
