"""Mask R-CNN on ViT-Adapter, the detection flavour, by the recipe of its authors' config for DINOv2-S.

For DINOv2-B, theirs has a decay_rate of 0.6 (configs/vit_adapter: mask-rcnn_dinov2-b-adapter-no-cls).
"""

_base_ = [
    '../models/mask-rcnn_fpn.py',
    '../datasets/coco_instance_ms.py',
    '../schedules/schedule_3x.py',
    '../default_runtime_mmdet.py',
]

model = dict(
    backbone=dict(type='mmlape.ViTAdapter', norm_cfg=dict(type='SyncBN', requires_grad=True))
)
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    paramwise_cfg=dict(_delete_=True, decay_rate=0.7),
)
