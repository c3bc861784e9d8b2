"""EoMT, DINOv2-L. ADE20K, 40K iterations, 8 GPUs x 2 images.

Published (EoMT, released code, model zoo): mIoU 58.4. That network has registers, which this row has not.
"""

_base_ = ['../_base_/foundation/eomt_semantic.py', '../_base_/foundation/dinov2-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(vit=dict(_base_.vit, final_norm=True), num_blocks=4),
)
optim_wrapper = dict(paramwise_cfg=dict(full_rate_layers=4))
