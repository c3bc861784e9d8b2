"""RetinaNet on ViT-Adapter-S. The head reads strides 8 and coarser, so the adapter makes no finer map."""

_base_ = ['./retinanet_fpn.py', './vit-adapter_deit-s.py']

model = dict(
    backbone=dict(_base_.vit_adapter, out_indices=[1, 2, 3]),
    neck=dict(in_channels=[384] * 3, start_level=0),
)
