"""As default_runtime_mmpretrain.py, for trainings that count iterations."""

_base_ = './default_runtime_mmpretrain.py'

default_hooks = dict(
    logger=dict(interval=50, log_metric_by_epoch=False),
    checkpoint=dict(by_epoch=False, interval=500),
)
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=False)
