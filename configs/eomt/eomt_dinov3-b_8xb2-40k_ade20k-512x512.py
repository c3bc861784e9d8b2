"""EoMT, DINOv3-B. ADE20K, 40K iterations, 8 GPUs x 2 images.

There is no published figure for this row.
"""

_base_ = ['../_base_/foundation/eomt_semantic.py', '../_base_/foundation/dinov3-b.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(vit=dict(_base_.vit, final_norm=True)),
)
optim_wrapper = dict(optimizer=dict(lr=2e-4))
param_scheduler = [dict(_base_.param_scheduler[0], warmup=(2000, 3000))]
