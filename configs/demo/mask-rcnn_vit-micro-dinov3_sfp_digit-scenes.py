# The demo's Mask R-CNN on a plain ViT of DINOv3's parts and ViTDet's simple feature pyramid.
_base_ = [
    './mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    '../_base_/models/demo_vit-micro-dinov3.py',
]

max_iters = 500
model = dict(
    backbone=dict(_base_.micro_vit, _delete_=True, patch_size=8),
    # Patches of 8 pixels: strides 4, 8, 16 and 32.
    neck=dict(
        _delete_=True,
        type='mmlape.SimpleFeaturePyramid',
        in_channels=96,
        out_channels=64,
        scales=[2, 1, 0.5],
        num_outs=4,
    ),
)
param_scheduler = [
    _base_.param_scheduler[0],
    dict(_base_.param_scheduler[1], end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
