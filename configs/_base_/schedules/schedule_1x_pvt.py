"""The schedule of PVT: ``schedule_1x`` with a weight decay of 1e-4 on every parameter.

The learning rate is RetinaNet's, 1e-4; Mask R-CNN has 2e-4.
"""

_base_ = './schedule_1x.py'

optim_wrapper = dict(
    _delete_=True,
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-4, betas=(0.9, 0.999), weight_decay=1e-4),
)
