"""DeiT-Ti that was trained on without position; one of its own for queries, keys and values, which alone is trained.

Gabor functions and edge markers beside queries and keys (part 4), edge markers in the values, in all layers.
ImageNet-1K, 50 epochs. It starts from what deit-t-no-position_2xb256-50e_in1k has made.
Published (Gabor, Table 3): Top 1 Accuracy 70.83, Top 5 Accuracy 90.17.
"""

_base_ = './deit-t-no-position_2xb256-50e_in1k.py'

model = dict(
    init_cfg=None, backbone=dict(attention_position=dict(type='mmlape.GaborAttention', parts='4'))
)
optim_wrapper = dict(optimizer=dict(lr=1e-3))
param_scheduler = [dict(type='CosineAnnealingLR', eta_min=1e-5, by_epoch=True)]
custom_hooks = [dict(type='mmlape.PositionOnlyHook')]
load_from = 'work_dirs/deit-t-no-position_2xb256-50e_in1k/epoch_50.pth'
