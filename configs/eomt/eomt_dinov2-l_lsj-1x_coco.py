"""EoMT, DINOv2-L. COCO instances, 12 epochs, 8 GPUs x 2 images.

Published (EoMT, released code, model zoo): mask AP 45.2. That network has registers, which this row has not.
"""

_base_ = ['../_base_/foundation/eomt_instance.py', '../_base_/foundation/dinov2-l.py']

model = dict(
    data_preprocessor=_base_.pixels,
    backbone=dict(vit=dict(_base_.vit, final_norm=True), num_blocks=4),
)
optim_wrapper = dict(paramwise_cfg=dict(full_rate_layers=4))
