channels = 4
custom_hooks = [
    dict(interval=1, type='mmlape.DTNRatioHook'),
    dict(type='mmlape.ResumeCheckHook'),
]
data_from = '`mmlape build_digit_scenes data/digit_scenes` makes them (docs/index.md#the-demo)'
data_root = 'data/digit_scenes/'
default_hooks = dict(
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    checkpoint=dict(
        by_epoch=False,
        interval=4,
        max_keep_ckpts=2,
        type='mmlape.CheckpointHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    hung=dict(type='mmlape.HungProcessHook'),
    logger=dict(interval=1, log_metric_by_epoch=False, type='LoggerHook'),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    timer=dict(type='IterTimerHook'))
default_scope = 'mmdet'
dims = [
    4,
    8,
    10,
    12,
]
env_cfg = dict(
    cudnn_benchmark=False,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
log_processor = dict(by_epoch=False, type='LogProcessor', window_size=50)
max_iters = 12
metainfo = dict(
    classes=(
        '0',
        '1',
        '2',
        '3',
        '4',
        '5',
        '6',
        '7',
        '8',
        '9',
    ),
    palette=[
        (
            230,
            25,
            75,
        ),
        (
            60,
            180,
            75,
        ),
        (
            255,
            225,
            25,
        ),
        (
            0,
            130,
            200,
        ),
        (
            245,
            130,
            48,
        ),
        (
            145,
            30,
            180,
        ),
        (
            70,
            240,
            240,
        ),
        (
            240,
            50,
            230,
        ),
        (
            210,
            245,
            60,
        ),
        (
            250,
            190,
            212,
        ),
    ])
model = dict(
    backbone=dict(
        arch=dict(
            depths=[
                1,
                1,
                1,
                1,
            ],
            embed_dims=[
                4,
                8,
                10,
                12,
            ],
            mlp_ratios=[
                1,
                1,
                1,
                1,
            ],
            num_heads=[
                1,
                2,
                5,
                6,
            ],
            sr_ratios=[
                8,
                4,
                2,
                1,
            ]),
        img_size=96,
        norm_cfg=dict(type='mmlape.DTN'),
        type='mmlape.PyramidVisionTransformer'),
    bbox_head=dict(
        anchor_generator=dict(
            octave_base_scale=3,
            ratios=[
                0.5,
                1.0,
                2.0,
            ],
            scales_per_octave=3,
            strides=[
                8,
                16,
                32,
            ],
            type='AnchorGenerator'),
        bbox_coder=dict(
            target_means=[
                0.0,
                0.0,
                0.0,
                0.0,
            ],
            target_stds=[
                1.0,
                1.0,
                1.0,
                1.0,
            ],
            type='DeltaXYWHBBoxCoder'),
        feat_channels=4,
        in_channels=4,
        init_cfg=dict(
            layer='Conv2d',
            override=[
                dict(
                    bias_prob=0.01, name='retina_cls', std=0.05,
                    type='Normal'),
                dict(name='retina_reg', std=0.01, type='Normal'),
            ],
            type='Kaiming'),
        loss_bbox=dict(loss_weight=1.0, type='L1Loss'),
        loss_cls=dict(
            alpha=0.25,
            gamma=2.0,
            loss_weight=1.0,
            type='FocalLoss',
            use_sigmoid=True),
        norm_cfg=dict(num_groups=2, type='GN'),
        num_classes=10,
        stacked_convs=1,
        type='RetinaHead'),
    data_preprocessor=dict(
        bgr_to_rgb=True,
        mean=[
            123.675,
            116.28,
            103.53,
        ],
        pad_size_divisor=32,
        std=[
            58.395,
            57.12,
            57.375,
        ],
        type='DetDataPreprocessor'),
    neck=dict(
        add_extra_convs='on_input',
        in_channels=[
            4,
            8,
            10,
            12,
        ],
        num_outs=3,
        out_channels=4,
        start_level=1,
        type='FPN'),
    test_cfg=dict(
        max_per_img=30,
        min_bbox_size=0,
        nms=dict(iou_threshold=0.5, type='nms'),
        nms_pre=200,
        score_thr=0.0),
    train_cfg=dict(
        allowed_border=-1,
        assigner=dict(
            ignore_iof_thr=-1,
            min_pos_iou=0,
            neg_iou_thr=0.4,
            pos_iou_thr=0.5,
            type='MaxIoUAssigner'),
        debug=False,
        pos_weight=-1,
        sampler=dict(type='PseudoSampler')),
    type='RetinaNet')
optim_wrapper = dict(
    clip_grad=dict(max_norm=5.0),
    constructor='mmlape.MergedGroupsOptimizerConstructor',
    optimizer=dict(fused=True, lr=0.002, type='AdamW', weight_decay=0.05),
    paramwise_cfg=dict(bias_decay_mult=0.0, norm_decay_mult=0.0),
    type='OptimWrapper')
param_scheduler = [
    dict(begin=0, by_epoch=False, end=3, start_factor=0.1, type='LinearLR'),
    dict(
        begin=3,
        by_epoch=False,
        end=12,
        eta_min=1e-05,
        type='CosineAnnealingLR'),
]
randomness = dict(seed=0)
resume = False
test_cfg = dict(type='TestLoop')
test_dataloader = dict(
    batch_size=2,
    dataset=dict(
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/val/'),
        data_root='data/digit_scenes/',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                (
                    230,
                    25,
                    75,
                ),
                (
                    60,
                    180,
                    75,
                ),
                (
                    255,
                    225,
                    25,
                ),
                (
                    0,
                    130,
                    200,
                ),
                (
                    245,
                    130,
                    48,
                ),
                (
                    145,
                    30,
                    180,
                ),
                (
                    70,
                    240,
                    240,
                ),
                (
                    240,
                    50,
                    230,
                ),
                (
                    210,
                    245,
                    60,
                ),
                (
                    250,
                    190,
                    212,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                96,
                96,
            ), type='Resize'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(
                meta_keys=(
                    'img_id',
                    'img_path',
                    'ori_shape',
                    'img_shape',
                    'scale_factor',
                ),
                type='PackDetInputs'),
        ],
        test_mode=True,
        type='CocoDataset'),
    drop_last=False,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    ann_file='data/digit_scenes/annotations/instances_val.json',
    metric=[
        'bbox',
        'proposal',
    ],
    type='CocoMetric')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(keep_ratio=True, scale=(
        96,
        96,
    ), type='Resize'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(
        meta_keys=(
            'img_id',
            'img_path',
            'ori_shape',
            'img_shape',
            'scale_factor',
        ),
        type='PackDetInputs'),
]
train_cfg = dict(max_iters=12, type='IterBasedTrainLoop', val_interval=12)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        ann_file='annotations/instances_train.json',
        data_prefix=dict(img='images/train/'),
        data_root='data/digit_scenes/',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                (
                    230,
                    25,
                    75,
                ),
                (
                    60,
                    180,
                    75,
                ),
                (
                    255,
                    225,
                    25,
                ),
                (
                    0,
                    130,
                    200,
                ),
                (
                    245,
                    130,
                    48,
                ),
                (
                    145,
                    30,
                    180,
                ),
                (
                    70,
                    240,
                    240,
                ),
                (
                    240,
                    50,
                    230,
                ),
                (
                    210,
                    245,
                    60,
                ),
                (
                    250,
                    190,
                    212,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(type='PackDetInputs'),
        ],
        type='CocoDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', with_bbox=True),
    dict(type='PackDetInputs'),
]
val_cfg = dict(type='ValLoop')
val_dataloader = dict(
    batch_size=2,
    dataset=dict(
        ann_file='annotations/instances_val.json',
        data_prefix=dict(img='images/val/'),
        data_root='data/digit_scenes/',
        metainfo=dict(
            classes=(
                '0',
                '1',
                '2',
                '3',
                '4',
                '5',
                '6',
                '7',
                '8',
                '9',
            ),
            palette=[
                (
                    230,
                    25,
                    75,
                ),
                (
                    60,
                    180,
                    75,
                ),
                (
                    255,
                    225,
                    25,
                ),
                (
                    0,
                    130,
                    200,
                ),
                (
                    245,
                    130,
                    48,
                ),
                (
                    145,
                    30,
                    180,
                ),
                (
                    70,
                    240,
                    240,
                ),
                (
                    240,
                    50,
                    230,
                ),
                (
                    210,
                    245,
                    60,
                ),
                (
                    250,
                    190,
                    212,
                ),
            ]),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                96,
                96,
            ), type='Resize'),
            dict(type='LoadAnnotations', with_bbox=True),
            dict(
                meta_keys=(
                    'img_id',
                    'img_path',
                    'ori_shape',
                    'img_shape',
                    'scale_factor',
                ),
                type='PackDetInputs'),
        ],
        test_mode=True,
        type='CocoDataset'),
    drop_last=False,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    ann_file='data/digit_scenes/annotations/instances_val.json',
    metric=[
        'bbox',
        'proposal',
    ],
    type='CocoMetric')
vis_backends = [
    dict(type='LocalVisBackend'),
]
visualizer = dict(
    type='DetLocalVisualizer', vis_backends=[
        dict(type='LocalVisBackend'),
    ])
work_dir = 'run'
