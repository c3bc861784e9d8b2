# The demo's Mask R-CNN on a plain ViT of DINOv3's parts and ViTDet's simple feature pyramid.
_base_ = [
    './mask-rcnn_vit-micro-adapter-lape_fpn_digit-scenes.py',
    '../_base_/models/demo_vit-micro-dinov3.py',
]

max_iters = 500
warmup = 50
rois = dict(roi_layer=dict(sampling_ratio=2))
model = dict(
    backbone=dict(_base_.micro_vit, _delete_=True),
    neck=dict(_base_.micro_pyramid, _delete_=True),
    roi_head=dict(bbox_roi_extractor=rois, mask_roi_extractor=rois),
)
del rois
train_dataloader = dict(batch_size=8)
param_scheduler = [
    dict(_base_.param_scheduler[0], end=warmup),
    dict(_base_.param_scheduler[1], begin=warmup, end=max_iters),
]
train_cfg = dict(max_iters=max_iters, val_interval=max_iters)
