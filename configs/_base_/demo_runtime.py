# What the demo's configs share: iteration-based, a checkpoint every so often, one process on a CPU or one GPU.
default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(type='mmlape.CheckpointHook', by_epoch=False, interval=250, max_keep_ckpts=2),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    safe_loading=dict(type='mmlape.SafeLoadingHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
)
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # Seconds after which a process that waits for another one ends the run (docs/cluster.md).
    dist_cfg=dict(backend='nccl', timeout=1800),
)
vis_backends = [dict(type='LocalVisBackend')]
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
randomness = dict(seed=0)
val_cfg = dict(type='ValLoop')
test_cfg = dict(type='TestLoop')
