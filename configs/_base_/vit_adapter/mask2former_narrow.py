"""``mask2former.py`` on ViT-Adapter-L, for few classes: wider networks in the pixel decoder."""

_base_ = './mask2former.py'

wider = dict(feedforward_channels=2048)
model = dict(decode_head=dict(pixel_decoder=dict(encoder=dict(layer_cfg=dict(ffn_cfg=wider)))))
optim_wrapper = dict(optimizer=dict(lr=2e-5), paramwise_cfg=dict(decay_rate=0.9))
del wider
