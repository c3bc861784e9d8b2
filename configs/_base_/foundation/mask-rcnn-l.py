"""``mask-rcnn.py`` with ViTDet-L's stochastic depth and learning rates by layer."""

_base_ = './mask-rcnn.py'

model = dict(backbone=dict(drop_path_rate=0.4))
optim_wrapper = dict(paramwise_cfg=dict(decay_rate=0.8))
