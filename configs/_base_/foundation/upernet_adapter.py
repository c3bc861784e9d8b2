"""UPerNet on ViT-Adapter, the segmentation flavour, by its recipe. A row adds the ViT, adapter sizes and channels."""

_base_ = [
    '../models/upernet.py',
    '../datasets/ade20k_multiple-of-32.py',
    '../schedules/schedule_160k_layer-decay.py',
    '../default_runtime_mmseg.py',
]

model = dict(
    backbone=dict(type='mmlape.ViTAdapter', vit_feature='per_stage', norm_cfg=_base_.norm_cfg)
)
