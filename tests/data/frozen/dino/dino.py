_known = dict(
    batch_size=128,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        indices=128,
        photographs=False,
        pipeline=[
            dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
            dict(type='PackInputs'),
        ],
        split='train',
        type='mmlape.DigitImages',
        whole=True),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
auto_scale_lr = dict(base_batch_size=64, enable=False)
bicubic = dict(backend='pillow', interpolation='bicubic')
blur = dict(
    magnitude_range=(
        0.1,
        2.0,
    ), magnitude_std='inf', type='GaussianBlur')
by_iter = dict(by_epoch=True, convert_to_iter_based=True)
colours = [
    dict(direction='horizontal', prob=0.5, type='RandomFlip'),
    dict(
        prob=0.8,
        transforms=[
            dict(
                brightness=0.4,
                contrast=0.4,
                hue=0.1,
                saturation=0.2,
                type='ColorJitter'),
        ],
        type='RandomApply'),
    dict(
        channel_weights=(
            0.114,
            0.587,
            0.2989,
        ),
        keep_channels=True,
        prob=0.2,
        type='RandomGrayscale'),
]
crop = dict(
    aspect_ratio_range=(
        0.85,
        1.18,
    ), backend='cv2', type='RandomResizedCrop')
crop_of_little = dict(
    backend='pillow',
    crop_ratio_range=(
        0.05,
        0.4,
    ),
    interpolation='bicubic',
    scale=96,
    type='RandomResizedCrop')
crop_of_many = dict(
    backend='pillow',
    crop_ratio_range=(
        0.4,
        1.0,
    ),
    interpolation='bicubic',
    scale=224,
    type='RandomResizedCrop')
custom_hooks = [
    dict(freeze_last_layer=1, max_norm=3.0, type='mmlape.DINOGradientsHook'),
    dict(
        dataloader=dict(
            batch_size=128,
            collate_fn=dict(type='default_collate'),
            dataset=dict(
                indices=128,
                photographs=False,
                pipeline=[
                    dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
                    dict(type='PackInputs'),
                ],
                split='train',
                type='mmlape.DigitImages',
                whole=True),
            num_workers=0,
            persistent_workers=False,
            sampler=dict(shuffle=False, type='DefaultSampler')),
        type='mmlape.KNNHook'),
    dict(type='mmlape.ResumeCheckHook'),
]
custom_imports = dict(
    allow_failed_imports=False,
    imports=[
        'mmlape',
        'mmlape.research.pretraining.dino',
    ])
data_from = 'docs/pretraining.md says how to get ImageNet-1K'
data_preprocessor = dict(
    mean=[
        60,
        60,
        60,
    ],
    std=[
        70,
        70,
        70,
    ],
    to_rgb=False,
    type='SelfSupDataPreprocessor')
default_hooks = dict(
    check_weights=dict(type='mmlape.CheckWeightsHook'),
    checkpoint=dict(
        interval=1,
        max_keep_ckpts=2,
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
digits = dict(
    _delete_=True, photographs=False, type='mmlape.DigitImages', whole=True)
env_cfg = dict(
    cudnn_benchmark=True,
    dist_cfg=dict(backend='nccl'),
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0))
first_view = [
    dict(
        backend='pillow',
        crop_ratio_range=(
            0.4,
            1.0,
        ),
        interpolation='bicubic',
        scale=224,
        type='RandomResizedCrop'),
    dict(direction='horizontal', prob=0.5, type='RandomFlip'),
    dict(
        prob=0.8,
        transforms=[
            dict(
                brightness=0.4,
                contrast=0.4,
                hue=0.1,
                saturation=0.2,
                type='ColorJitter'),
        ],
        type='RandomApply'),
    dict(
        channel_weights=(
            0.114,
            0.587,
            0.2989,
        ),
        keep_channels=True,
        prob=0.2,
        type='RandomGrayscale'),
    dict(
        magnitude_range=(
            0.1,
            2.0,
        ),
        magnitude_std='inf',
        prob=1.0,
        type='GaussianBlur'),
]
global_view = [
    dict(
        aspect_ratio_range=(
            0.85,
            1.18,
        ),
        backend='cv2',
        crop_ratio_range=(
            0.7,
            1.0,
        ),
        scale=32,
        type='RandomResizedCrop'),
    dict(backend='cv2', brightness=0.2, contrast=0.2, type='ColorJitter'),
]
grey = dict(keep_channels=True, prob=1.0, type='RandomGrayscale')
imagenet = dict(data_root='data/imagenet', type='ImageNet')
in_order = dict(
    batch_size=128,
    collate_fn=dict(type='default_collate'),
    num_workers=10,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
knn_dataloader = dict(
    batch_size=128,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        data_root='data/imagenet',
        pipeline=[
            dict(type='LoadImageFromFile'),
            dict(
                backend='pillow',
                edge='short',
                interpolation='bicubic',
                scale=256,
                type='ResizeEdge'),
            dict(crop_size=224, type='CenterCrop'),
            dict(type='PackInputs'),
        ],
        split='train',
        type='ImageNet'),
    num_workers=10,
    persistent_workers=True,
    sampler=dict(shuffle=False, type='DefaultSampler'))
known = dict(
    batch_size=128,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        photographs=False,
        pipeline=[
            dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
            dict(type='PackInputs'),
        ],
        split='train',
        type='mmlape.DigitImages',
        whole=True),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
launcher = 'none'
light = dict(backend='cv2', brightness=0.2, contrast=0.2, type='ColorJitter')
load_from = None
loading = dict(
    collate_fn=dict(type='default_collate'),
    num_workers=0,
    persistent_workers=False)
local_view = [
    dict(
        aspect_ratio_range=(
            0.85,
            1.18,
        ),
        backend='cv2',
        crop_ratio_range=(
            0.4,
            0.8,
        ),
        scale=16,
        type='RandomResizedCrop'),
    dict(backend='cv2', brightness=0.2, contrast=0.2, type='ColorJitter'),
]
log_level = 'INFO'
log_processor = dict(custom_cfg=[
    dict(data_src='teacher_entropy', method_name='mean', window_size=10),
    dict(data_src='divergence', method_name='mean', window_size=10),
])
max_epochs = 4
model = dict(
    backbone=dict(
        arch=dict(depth=2, embed_dims=16, mlp_ratio=2, num_heads=2),
        drop_path_rate=0.0,
        img_size=32,
        init_cfg=dict(layer='Linear', std=0.12, type='TruncNormal'),
        norm_cfg=dict(type='mmlape.DTN'),
        out_type='cls_token',
        patch_size=8,
        type='mmlape.VisionTransformer'),
    criterion=dict(
        centre_momentum=0.3,
        student_temperature=0.1,
        teacher_temperature=0.01,
        type='mmlape.DINOLoss'),
    head=dict(
        bottleneck_channels=8,
        hidden_channels=24,
        in_channels=16,
        out_channels=32,
        type='mmlape.DINOHead'),
    momentum=0.99,
    type='mmlape.DINO')
optim_wrapper = dict(
    optimizer=dict(
        betas=(
            0.9,
            0.999,
        ), lr=0.001, type='AdamW', weight_decay=0.04),
    paramwise_cfg=dict(
        bias_decay_mult=0.0,
        custom_keys=dict(
            joining=dict(decay_mult=0.0), positions=dict(decay_mult=0.0)),
        flat_decay_mult=0.0,
        norm_decay_mult=0.0),
    type='OptimWrapper')
param_scheduler = [
    dict(
        begin=0,
        by_epoch=True,
        convert_to_iter_based=True,
        end=1,
        start_factor=0.001,
        type='LinearLR'),
    dict(
        begin=1,
        by_epoch=True,
        convert_to_iter_based=True,
        end=4,
        eta_min=1e-05,
        type='CosineAnnealingLR'),
    dict(
        begin=0,
        by_epoch=True,
        convert_to_iter_based=True,
        end=4,
        eta_min=0.1,
        type='CosineAnnealingWeightDecay'),
]
randomness = dict(deterministic=False, seed=0)
resume = False
second_view = [
    dict(
        backend='pillow',
        crop_ratio_range=(
            0.4,
            1.0,
        ),
        interpolation='bicubic',
        scale=224,
        type='RandomResizedCrop'),
    dict(direction='horizontal', prob=0.5, type='RandomFlip'),
    dict(
        prob=0.8,
        transforms=[
            dict(
                brightness=0.4,
                contrast=0.4,
                hue=0.1,
                saturation=0.2,
                type='ColorJitter'),
        ],
        type='RandomApply'),
    dict(
        channel_weights=(
            0.114,
            0.587,
            0.2989,
        ),
        keep_channels=True,
        prob=0.2,
        type='RandomGrayscale'),
    dict(
        magnitude_range=(
            0.1,
            2.0,
        ),
        magnitude_std='inf',
        prob=0.1,
        type='GaussianBlur'),
    dict(prob=0.2, thr=128, type='Solarize'),
]
test_cfg = dict()
test_dataloader = dict(
    batch_size=32,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        indices=64,
        photographs=False,
        pipeline=[
            dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
            dict(type='PackInputs'),
        ],
        split='val',
        type='mmlape.DigitImages',
        whole=True),
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=False, type='DefaultSampler'))
test_evaluator = dict(
    topk=(
        1,
        5,
    ), type='Accuracy')
test_pipeline = [
    dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
    dict(type='PackInputs'),
]
train_cfg = dict(by_epoch=True, max_epochs=4, val_interval=4)
train_dataloader = dict(
    batch_size=16,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        indices=64,
        photographs=False,
        pipeline=[
            dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
            dict(
                num_views=[
                    2,
                    2,
                ],
                transforms=[
                    [
                        dict(
                            aspect_ratio_range=(
                                0.85,
                                1.18,
                            ),
                            backend='cv2',
                            crop_ratio_range=(
                                0.7,
                                1.0,
                            ),
                            scale=32,
                            type='RandomResizedCrop'),
                        dict(
                            backend='cv2',
                            brightness=0.2,
                            contrast=0.2,
                            type='ColorJitter'),
                    ],
                    [
                        dict(
                            aspect_ratio_range=(
                                0.85,
                                1.18,
                            ),
                            backend='cv2',
                            crop_ratio_range=(
                                0.4,
                                0.8,
                            ),
                            scale=16,
                            type='RandomResizedCrop'),
                        dict(
                            backend='cv2',
                            brightness=0.2,
                            contrast=0.2,
                            type='ColorJitter'),
                    ],
                ],
                type='MultiView'),
            dict(type='PackInputs'),
        ],
        split='train',
        type='mmlape.DigitImages',
        whole=True),
    drop_last=True,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(shuffle=True, type='DefaultSampler'))
train_pipeline = [
    dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
    dict(
        num_views=[
            2,
            2,
        ],
        transforms=[
            [
                dict(
                    aspect_ratio_range=(
                        0.85,
                        1.18,
                    ),
                    backend='cv2',
                    crop_ratio_range=(
                        0.7,
                        1.0,
                    ),
                    scale=32,
                    type='RandomResizedCrop'),
                dict(
                    backend='cv2',
                    brightness=0.2,
                    contrast=0.2,
                    type='ColorJitter'),
            ],
            [
                dict(
                    aspect_ratio_range=(
                        0.85,
                        1.18,
                    ),
                    backend='cv2',
                    crop_ratio_range=(
                        0.4,
                        0.8,
                    ),
                    scale=16,
                    type='RandomResizedCrop'),
                dict(
                    backend='cv2',
                    brightness=0.2,
                    contrast=0.2,
                    type='ColorJitter'),
            ],
        ],
        type='MultiView'),
    dict(type='PackInputs'),
]
val_cfg = dict()
val_dataloader = dict(
    batch_size=32,
    collate_fn=dict(type='default_collate'),
    dataset=dict(
        indices=64,
        photographs=False,
        pipeline=[
            dict(keep_channels=True, prob=1.0, type='RandomGrayscale'),
            dict(type='PackInputs'),
        ],
        split='val',
        type='mmlape.DigitImages',
        whole=True),
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
