"""Runtime of every MMDetection config: scope, hooks, logging. Epoch-based."""

custom_imports = dict(imports=['mmlape'], allow_failed_imports=False)
default_scope = 'mmdet'

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='mmlape.CheckpointHook', interval=1, max_keep_ckpts=3, save_best='auto'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    visualization=dict(type='DetVisualizationHook'),
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    safe_loading=dict(type='mmlape.SafeLoadingHook'),
)

env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # Seconds after which a process that waits for another one ends the run (docs/cluster.md).
    dist_cfg=dict(backend='nccl', timeout=1800),
)

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='DetLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=True)
log_level = 'INFO'
load_from = None
resume = False
