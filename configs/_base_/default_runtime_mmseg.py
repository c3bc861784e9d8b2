"""Runtime of every MMSegmentation config: scope, hooks, logging. Iteration-based."""

custom_imports = dict(imports=['mmlape'], allow_failed_imports=False)
default_scope = 'mmseg'

default_hooks = dict(
    timer=dict(type='IterTimerHook'),
    logger=dict(type='LoggerHook', interval=50, log_metric_by_epoch=False),
    param_scheduler=dict(type='ParamSchedulerHook'),
    checkpoint=dict(
        type='mmlape.CheckpointHook',
        by_epoch=False,
        interval=16000,
        max_keep_ckpts=3,
        save_best='mIoU',
    ),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    visualization=dict(type='SegVisualizationHook'),
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    safe_loading=dict(type='mmlape.SafeLoadingHook'),
)

env_cfg = dict(
    cudnn_benchmark=True,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # Seconds after which a process that waits for another one ends the run (docs/cluster.md).
    dist_cfg=dict(backend='nccl', timeout=1800),
)

vis_backends = [dict(type='LocalVisBackend')]
visualizer = dict(type='SegLocalVisualizer', vis_backends=vis_backends, name='visualizer')
log_processor = dict(type='LogProcessor', window_size=50, by_epoch=False)
log_level = 'INFO'
load_from = None
resume = False
tta_model = dict(type='SegTTAModel')
