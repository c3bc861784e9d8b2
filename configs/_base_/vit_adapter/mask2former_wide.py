"""``mask2former_l.py`` with 1024 channels and 32 heads, for ViT-Adapter-L."""

_base_ = './mask2former_l.py'

sine = dict(num_feats=512)
attention = dict(embed_dims=1024, num_heads=32)
network = dict(embed_dims=1024, feedforward_channels=4096)
model = dict(
    decode_head=dict(
        feat_channels=1024,
        out_channels=1024,
        pixel_decoder=dict(
            encoder=dict(layer_cfg=dict(self_attn_cfg=attention, ffn_cfg=network)),
            positional_encoding=sine,
        ),
        positional_encoding=sine,
        transformer_decoder=dict(
            layer_cfg=dict(self_attn_cfg=attention, cross_attn_cfg=attention, ffn_cfg=network)
        ),
    )
)
del sine, attention, network
