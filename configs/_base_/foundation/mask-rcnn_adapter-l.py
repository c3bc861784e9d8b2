"""``mask-rcnn_adapter.py`` with the learning rates by layer of the authors' config for DINOv2-L."""

_base_ = './mask-rcnn_adapter.py'

optim_wrapper = dict(paramwise_cfg=dict(decay_rate=0.65))
