"""UPerNet on ViT-Adapter-Ti, the segmentation flavour: global attention, one map of the ViT per interaction."""

_base_ = ['./upernet.py', './vit-adapter_deit-t.py']

adapter = _base_.vit_adapter
model = dict(
    backbone=dict(adapter, vit=dict(adapter.vit, window_size=None), vit_feature='per_stage'),
    decode_head=dict(in_channels=[192] * 4),
    auxiliary_head=dict(in_channels=192),
)
del adapter
