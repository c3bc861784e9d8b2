"""``mask2former_l.py`` on ViT-Adapter-L, for few classes: wider networks in the pixel decoder."""

_base_ = './mask2former_l.py'

wider = dict(feedforward_channels=2048)
model = dict(decode_head=dict(pixel_decoder=dict(encoder=dict(layer_cfg=dict(ffn_cfg=wider)))))
del wider
