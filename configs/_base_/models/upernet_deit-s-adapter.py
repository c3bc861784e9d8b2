"""UPerNet on ViT-Adapter-S, the segmentation flavour: global attention, one map of the ViT per interaction."""

_base_ = ['./upernet.py', './vit-adapter_deit-s.py']

adapter = _base_.vit_adapter
model = dict(
    backbone=dict(adapter, vit=dict(adapter.vit, window_size=None), vit_feature='per_stage'),
    decode_head=dict(in_channels=[384] * 4),
    auxiliary_head=dict(in_channels=384),
)
del adapter
