_bn = dict(type='BN')
_no = dict(num_workers=0, persistent_workers=False)
auto_scale_lr = dict(base_batch_size=16, enable=False)
crop_size = (
    64,
    64,
)
custom_hooks = [
    dict(max_decode=None, type='mmlape.CheckDataHook'),
    dict(type='mmlape.ResumeCheckHook'),
]
custom_imports = dict(
    allow_failed_imports=False, imports=[
        'mmlape',
    ])
data_from = 'ADE20K is to be downloaded (docs/data.md)'
data_root = 'data/ade/ADEChallengeData2016'
dataset_type = 'ADE20KDataset'
default_hooks = dict(
    check_weights=dict(allow_partial=False, type='mmlape.CheckWeightsHook'),
    checkpoint=dict(
        by_epoch=False,
        interval=8,
        max_keep_ckpts=3,
        save_best='mIoU',
        type='mmlape.CheckpointHook'),
    exact_resume=dict(type='mmlape.ExactResumeHook'),
    finite=dict(gradients=False, type='mmlape.StopAtNonFiniteHook'),
    hung=dict(timeout=200, type='mmlape.HungProcessHook'),
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
max_iters = 160000
model = dict(
    auxiliary_head=dict(
        align_corners=False,
        channels=4,
        concat_input=False,
        dropout_ratio=0.1,
        in_channels=8,
        in_index=2,
        loss_decode=dict(
            loss_weight=0.4, type='CrossEntropyLoss', use_sigmoid=False),
        norm_cfg=dict(requires_grad=True, type='BN'),
        num_classes=150,
        num_convs=1,
        type='FCNHead'),
    backbone=dict(
        cffn_ratio=0.25,
        conv_inplanes=4,
        deform_num_heads=2,
        deform_ratio=1.0,
        interaction_indexes=[
            [
                0,
                0,
            ],
            [
                1,
                1,
            ],
        ],
        norm_cfg=dict(requires_grad=True, type='BN'),
        num_points=2,
        type='mmlape.ViTAdapter',
        vit=dict(
            arch=dict(depth=2, embed_dims=8, mlp_ratio=1, num_heads=2),
            drop_path_rate=0.1,
            final_norm=False,
            img_size=64,
            init_cfg=None,
            joining=dict(type='mmlape.LaPE'),
            layer_scale=True,
            patch_size=16,
            type='mmlape.VisionTransformer',
            window_size=None,
            with_cls_token=False),
        vit_feature='last'),
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
        align_corners=False,
        channels=4,
        dropout_ratio=0.1,
        in_channels=[
            8,
            8,
            8,
            8,
        ],
        in_index=[
            0,
            1,
            2,
            3,
        ],
        loss_decode=dict(
            loss_weight=1.0, type='CrossEntropyLoss', use_sigmoid=False),
        norm_cfg=dict(requires_grad=True, type='BN'),
        num_classes=150,
        pool_scales=(
            1,
            2,
            3,
            6,
        ),
        type='UPerHead'),
    test_cfg=dict(crop_size=(
        64,
        64,
    ), mode='slide', stride=(
        42,
        42,
    )),
    train_cfg=dict(),
    type='EncoderDecoder')
norm_cfg = dict(requires_grad=True, type='SyncBN')
optim_wrapper = dict(
    constructor='mmlape.LayerDecayOptimizerConstructor',
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.01, type='AdamW', weight_decay=0.01),
    paramwise_cfg=dict(decay_rate=0.95),
    type='OptimWrapper')
param_scheduler = [
    dict(begin=0, by_epoch=False, end=3, start_factor=0.1, type='LinearLR'),
    dict(
        begin=3, by_epoch=False, end=24, eta_min=0.0, power=1.0,
        type='PolyLR'),
]
randomness = dict(seed=0)
resume = False
test_cfg = dict(type='TestLoop')
test_dataloader = dict(
    batch_size=1,
    dataset=dict(
        data_prefix=dict(
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='data/ade/ADEChallengeData2016',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                192,
                72,
            ), type='Resize'),
            dict(reduce_zero_label=True, type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        type='ADE20KDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(keep_ratio=True, scale=(
        192,
        72,
    ), type='Resize'),
    dict(reduce_zero_label=True, type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
train_cfg = dict(max_iters=24, type='IterBasedTrainLoop', val_interval=24)
train_dataloader = dict(
    batch_size=2,
    dataset=dict(
        data_prefix=dict(
            img_path='images/training', seg_map_path='annotations/training'),
        data_root='data/ade/ADEChallengeData2016',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(reduce_zero_label=True, type='LoadAnnotations'),
            dict(
                keep_ratio=True,
                ratio_range=(
                    0.9,
                    1.5,
                ),
                scale=(
                    192,
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
        type='ADE20KDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=True, type='InfiniteSampler'))
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(reduce_zero_label=True, type='LoadAnnotations'),
    dict(
        keep_ratio=True,
        ratio_range=(
            0.9,
            1.5,
        ),
        scale=(
            192,
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
                dict(size_divisor=32, type='ResizeToMultiple'),
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
            img_path='images/validation',
            seg_map_path='annotations/validation'),
        data_root='data/ade/ADEChallengeData2016',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(keep_ratio=True, scale=(
                192,
                72,
            ), type='Resize'),
            dict(reduce_zero_label=True, type='LoadAnnotations'),
            dict(type='PackSegInputs'),
        ],
        type='ADE20KDataset'),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
val_evaluator = dict(
    iou_metrics=[
        'mIoU',
    ], type='IoUMetric')
vis_backends = [
    dict(type='LocalVisBackend'),
]
visualizer = dict(
    name='visualizer',
    type='SegLocalVisualizer',
    vis_backends=[
        dict(type='LocalVisBackend'),
    ])
vit_adapter = dict(
    cffn_ratio=0.25,
    conv_inplanes=64,
    deform_num_heads=6,
    deform_ratio=1.0,
    interaction_indexes=[
        [
            0,
            2,
        ],
        [
            3,
            5,
        ],
        [
            6,
            8,
        ],
        [
            9,
            11,
        ],
    ],
    norm_cfg=dict(requires_grad=True, type='SyncBN'),
    num_points=4,
    type='mmlape.ViTAdapter',
    vit=dict(
        arch='deit-tiny',
        drop_path_rate=0.1,
        final_norm=False,
        img_size=224,
        init_cfg=dict(
            checkpoint=
            'https://dl.fbaipublicfiles.com/deit/deit_tiny_patch16_224-a1311bcf.pth',
            source='deit',
            type='mmlape.Pretrained'),
        joining=dict(type='mmlape.DefaultJoining'),
        layer_scale=True,
        patch_size=16,
        type='mmlape.VisionTransformer',
        window_size=[
            14,
            14,
            None,
            14,
            14,
            None,
            14,
            14,
            None,
            14,
            14,
            None,
        ],
        with_cls_token=False),
    vit_feature='last')
work_dir = 'run'
