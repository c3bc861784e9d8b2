auto_scale_lr = dict(base_batch_size=2, enable=False)
crop_size = (
    64,
    64,
)
custom_hooks = [
    dict(max_decode=10, type='mmlape.CheckDataHook'),
    dict(type='mmlape.ResumeCheckHook'),
]
custom_imports = dict(
    allow_failed_imports=False, imports=[
        'mmlape',
    ])
data_from = 'LAPE_DATA_ROOT names the data folder (docs/custom_data.md)'
data_root = 'data/streets'
dataset_type = 'ADE20KDataset'
default_hooks = dict(
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    checkpoint=dict(
        by_epoch=False,
        interval=8,
        max_keep_ckpts=3,
        save_best='mIoU',
        type='mmlape.CheckpointHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    finite=dict(type='mmlape.StopAtNonFiniteHook'),
    hung=dict(type='mmlape.HungProcessHook'),
    logger=dict(interval=1, log_metric_by_epoch=False, type='LoggerHook'),
    param_scheduler=dict(type='ParamSchedulerHook'),
    sampler_seed=dict(type='DistSamplerSeedHook'),
    timer=dict(type='IterTimerHook'),
    visualization=dict(type='SegVisualizationHook'))
default_scope = 'mmseg'
env_cfg = dict(
    cudnn_benchmark=True,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
launcher = 'none'
load_from = None
log_level = 'INFO'
log_processor = dict(by_epoch=False, type='LogProcessor', window_size=50)
max_iters = 24
model = dict(
    backbone=dict(
        arch=dict(depth=2, embed_dims=8, mlp_ratio=4, num_heads=2),
        drop_path_rate=0.1,
        img_size=64,
        init_cfg=None,
        joining=dict(type='mmlape.LaPE'),
        patch_size=16,
        type='mmlape.VisionTransformer'),
    data_preprocessor=dict(
        bgr_to_rgb=True,
        mean=[
            123.675,
            116.28,
            103.53,
        ],
        pad_val=0,
        seg_pad_val=255,
        size=(
            64,
            64,
        ),
        std=[
            58.395,
            57.12,
            57.375,
        ],
        type='SegDataPreProcessor'),
    decode_head=dict(
        channels=8,
        dropout_ratio=0.0,
        embed_dims=8,
        in_channels=8,
        init_std=0.6,
        loss_decode=dict(
            loss_weight=1.0, type='CrossEntropyLoss', use_sigmoid=False),
        num_classes=3,
        num_heads=2,
        num_layers=2,
        type='SegmenterMaskTransformerHead'),
    test_cfg=dict(crop_size=(
        64,
        64,
    ), mode='slide', stride=(
        60,
        60,
    )),
    train_cfg=dict(),
    type='EncoderDecoder')
optim_wrapper = dict(
    clip_grad=dict(max_norm=1.0),
    optimizer=dict(lr=0.001, type='AdamW', weight_decay=0.05),
    paramwise_cfg=dict(
        custom_keys=dict(
            bias=dict(decay_mult=0.0),
            cls_token=dict(decay_mult=0.0),
            norm=dict(decay_mult=0.0),
            pos_embed=dict(decay_mult=0.0))),
    type='OptimWrapper')
options = dict(
    ann_suffix='.png',
    batch_size=2,
    classes=(
        'road',
        'house',
        'tree',
    ),
    crop_size=64,
    data_root='data/streets',
    img_scale=(
        128,
        72,
    ),
    img_suffix='.jpg',
    lr=0.001,
    max_iters=24,
    num_workers=1,
    reduce_zero_label=False,
    train_ann='annotations/train',
    train_img='images/train',
    val_ann='annotations/val',
    val_img='images/val',
    vit='8x2x2',
    weights='none')
param_scheduler = [
    dict(begin=0, by_epoch=False, end=2, start_factor=0.01, type='LinearLR'),
    dict(
        begin=2,
        by_epoch=False,
        end=24,
        eta_min=1e-06,
        power=0.9,
        type='PolyLR'),
]
randomness = dict(seed=0)
resume = False
runner_type = 'mmlape.EarlyHookRunner'
test_cfg = dict(type='TestLoop')
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/val', seg_map_path='annotations/val'),
        data_root='data/streets',
        img_suffix='.jpg',
        metainfo=dict(classes=(
            'road',
            'house',
            'tree',
        )),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                128,
                72,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        seg_map_suffix='.png',
        type='BaseSegDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(keep_ratio=True, scale=(
        128,
        72,
    ), type='Resize'),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_cfg = dict(max_iters=24, type='IterBasedTrainLoop', val_interval=2)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        data_prefix=dict(
            img_path='images/train', seg_map_path='annotations/train'),
        data_root='data/streets',
        img_suffix='.jpg',
        metainfo=dict(classes=(
            'road',
            'house',
            'tree',
        )),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(type='LoadAnnotations'),
            dict(
                keep_ratio=True,
                ratio_range=(
                    0.5,
                    2.0,
                ),
                scale=(
                    128,
                    72,
                ),
                type='RandomResize'),
            dict(cat_max_ratio=0.75, crop_size=(
                64,
                64,
            ), type='RandomCrop'),
            dict(prob=0.5, type='RandomFlip'),
            dict(type='PhotoMetricDistortion'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        seg_map_suffix='.png',
        type='BaseSegDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations'),
    dict(
        keep_ratio=True,
        ratio_range=(
            0.5,
            2.0,
        ),
        scale=(
            128,
            72,
        ),
        type='RandomResize'),
    dict(cat_max_ratio=0.75, crop_size=(
        64,
        64,
    ), type='RandomCrop'),
    dict(prob=0.5, type='RandomFlip'),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
tta_model = dict(type='SegTTAModel')
tta_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(
        transforms=[
            [
                dict(keep_ratio=True, scale_factor=0.5, type='Resize'),
                dict(keep_ratio=True, scale_factor=0.75, type='Resize'),
                dict(keep_ratio=True, scale_factor=1.0, type='Resize'),
                dict(keep_ratio=True, scale_factor=1.25, type='Resize'),
                dict(keep_ratio=True, scale_factor=1.5, type='Resize'),
                dict(keep_ratio=True, scale_factor=1.75, type='Resize'),
            ],
            [
                dict(direction='horizontal', prob=0.0, type='RandomFlip'),
                dict(direction='horizontal', prob=1.0, type='RandomFlip'),
            ],
            [
                dict(type='LoadAnnotations'),
            ],
            [
                dict(type='PackSegInputs'),
            ],
        ],
        type='TestTimeAug'),
]
val_cfg = dict(type='ValLoop')
val_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/val', seg_map_path='annotations/val'),
        data_root='data/streets',
        img_suffix='.jpg',
        metainfo=dict(classes=(
            'road',
            'house',
            'tree',
        )),
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                128,
                72,
            ), type='Resize'),
            dict(type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        reduce_zero_label=False,
        seg_map_suffix='.png',
        type='BaseSegDataset'),
    num_workers=1,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
val_interval = 2
vis_backends = [
    dict(type='LocalVisBackend'),
]
visualizer = dict(
    name='visualizer',
    type='SegLocalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
    ])
warmup = 2
work_dir = 'run'
