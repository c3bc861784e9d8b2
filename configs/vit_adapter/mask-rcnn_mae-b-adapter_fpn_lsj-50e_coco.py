"""Mask R-CNN, MAE ViT-B in ViT-Adapter-B, norms in all heads. COCO, 50 epochs, 8 GPUs x 2 images.

Published (ViT-Adapter, ICLR 2023, README of its code): box AP 50.8, mask AP 45.1.
"""

_base_ = './mask-rcnn_mae-b-adapter_fpn_lsj-25e_coco.py'

max_epochs = 50
model = dict(backbone=dict(vit=dict(drop_path_rate=0.2)))
param_scheduler = [_base_.param_scheduler[0], dict(_base_.param_scheduler[1], T_max=max_epochs)]
train_cfg = dict(max_epochs=max_epochs)
