# What the demo's detectors share beyond that: how they learn. A config adds the iterations, and the schedule over them.
_base_ = './demo_runtime.py'

default_scope = 'mmdet'
optim_wrapper = dict(
    type='OptimWrapper',
    optimizer=dict(type='AdamW', lr=1e-3, weight_decay=0.05, fused=True),
    constructor='mmlape.MergedGroupsOptimizerConstructor',
    paramwise_cfg=dict(norm_decay_mult=0.0, bias_decay_mult=0.0),
    clip_grad=dict(max_norm=5.0),
)
visualizer = dict(type='DetLocalVisualizer', vis_backends=[dict(type='LocalVisBackend')])
