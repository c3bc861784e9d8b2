"""EoMT, DINOv3-L. COCO, things and stuff, 12 epochs, 8 GPUs x 2 images.

Published (EoMT, released code, model zoo): PQ 56.8.
"""

_base_ = ['../_base_/foundation/eomt_panoptic.py', '../_base_/foundation/dinov3-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(vit=dict(_base_.vit, final_norm=True), num_blocks=4),
)
optim_wrapper = dict(optimizer=dict(lr=2e-4), paramwise_cfg=dict(full_rate_layers=4))
param_scheduler = [dict(_base_.param_scheduler[0], warmup=(2000, 3000))]
