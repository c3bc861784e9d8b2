_names = dict(classes=[
    'n0',
    'n1',
    'n2',
    'n3',
    'n4',
    'n5',
    'n6',
    'n7',
])
_no = dict(num_workers=0, persistent_workers=False)
auto_scale_lr = dict(base_batch_size=1024, enable=False)
bgr_mean = [
    103.53,
    116.28,
    123.675,
]
bgr_std = [
    57.375,
    57.12,
    58.395,
]
custom_hooks = [
    dict(momentum=0.1, priority='ABOVE_NORMAL', type='EMAHook'),
    dict(type='mmlape.ResumeCheckHook'),
]
custom_imports = dict(
    allow_failed_imports=False, imports=[
        'mmlape',
    ])
data_from = 'docs/pretraining.md says how to get ImageNet-1K'
data_preprocessor = dict(
    mean=[
        123.675,
        116.28,
        103.53,
    ],
    num_classes=8,
    std=[
        58.395,
        57.12,
        57.375,
    ],
    to_rgb=True)
default_hooks = dict(
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    checkpoint=dict(
        interval=1,
        max_keep_ckpts=3,
        save_best='auto',
        type='mmlape.CheckpointHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    hung=dict(type='mmlape.HungProcessHook'),
    logger=dict(interval=1, type='LoggerHook'),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    timer=dict(type='IterTimerHook'),
    visualization=dict(enable=False, type='VisualizationHook'))
default_scope = 'mmpretrain'
env_cfg = dict(
    cudnn_benchmark=True,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
model = dict(
    backbone=dict(
        arch=dict(depth=2, embed_dims=16, mlp_ratio=2, num_heads=2),
        drop_path_rate=0.1,
        img_size=32,
        joining=dict(type='mmlape.LaPE'),
        norm_cfg=dict(eps=1e-05, type='mmlape.LN'),
        out_type='cls_token',
        token_dims=8,
        type='mmlape.T2TViT'),
    head=dict(
        in_channels=16,
        init_cfg=dict(layer='Linear', std=0.02, type='TruncNormal'),
        loss=dict(
            label_smooth_val=0.1, mode='original', type='LabelSmoothLoss'),
        num_classes=8,
        type='VisionTransformerClsHead'),
    train_cfg=dict(augments=[
        dict(alpha=0.8, type='Mixup'),
        dict(alpha=1.0, type='CutMix'),
    ]),
    type='ImageClassifier')
optim_wrapper = dict(
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.005, type='AdamW', weight_decay=0.03),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        custom_keys=dict(
            cls_token=dict(decay_mult=0.0),
            dist_token=dict(decay_mult=0.0),
            position=dict(decay_mult=0.0)),
        flat_decay_mult=0.0,
        norm_decay_mult=0.0),
    type='OptimWrapper')
param_scheduler = [
    dict(
        begin=0,
        by_epoch=True,
        convert_to_iter_based=True,
        end=1,
        start_factor=0.1,
        type='LinearLR'),
    dict(
        begin=1, by_epoch=True, end=4, eta_min=1e-05,
        type='CosineAnnealingLR'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
test_cfg = dict()
test_dataloader = dict(
    batch_size=16,
    dataset=dict(
        data_root='data/imagenet',
        metainfo=dict(classes=[
            'n0',
            'n1',
            'n2',
            'n3',
            'n4',
            'n5',
            'n6',
            'n7',
        ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                backend='pillow',
                edge='short',
                interpolation='bicubic',
                scale=36,
                type='ResizeEdge'),
            dict(crop_size=32, type='CenterCrop'),
            dict(type='PackInputs'),
        ],
        split='val',
        type='ImageNet'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    topk=(
        1,
        5,
    ), type='Accuracy')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        backend='pillow',
        edge='short',
        interpolation='bicubic',
        scale=36,
        type='ResizeEdge'),
    dict(crop_size=32, type='CenterCrop'),
    dict(type='PackInputs'),
]
train_cfg = dict(by_epoch=True, max_epochs=4, val_interval=4)
train_dataloader = dict(
    batch_size=8,
    dataset=dict(
        data_root='data/imagenet',
        metainfo=dict(classes=[
            'n0',
            'n1',
            'n2',
            'n3',
            'n4',
            'n5',
            'n6',
            'n7',
        ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                backend='pillow',
                interpolation='bicubic',
                scale=32,
                type='RandomResizedCrop'),
            dict(direction='horizontal', prob=0.5, type='RandomFlip'),
            dict(
                erase_prob=0.25,
                max_area_ratio=0.3333333333333333,
                min_area_ratio=0.02,
                mode='rand',
                type='RandomErasing'),
            dict(type='PackInputs'),
        ],
        split='train',
        type='ImageNet'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=True, type='DefaultSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        backend='pillow',
        interpolation='bicubic',
        scale=32,
        type='RandomResizedCrop'),
    dict(direction='horizontal', prob=0.5, type='RandomFlip'),
    dict(
        erase_prob=0.25,
        max_area_ratio=0.3333333333333333,
        min_area_ratio=0.02,
        mode='rand',
        type='RandomErasing'),
    dict(type='PackInputs'),
]
val_cfg = dict()
val_dataloader = dict(
    batch_size=16,
    dataset=dict(
        data_root='data/imagenet',
        metainfo=dict(classes=[
            'n0',
            'n1',
            'n2',
            'n3',
            'n4',
            'n5',
            'n6',
            'n7',
        ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                backend='pillow',
                edge='short',
                interpolation='bicubic',
                scale=36,
                type='ResizeEdge'),
            dict(crop_size=32, type='CenterCrop'),
            dict(type='PackInputs'),
        ],
        split='val',
        type='ImageNet'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    topk=(
        1,
        5,
    ), type='Accuracy')
vis_backends = [
    dict(type='LocalVisBackend'),
]
visualizer = dict(
    type='UniversalVisualizer', vis_backends=[
        dict(type='LocalVisBackend'),
    ])
work_dir = 'run'
