"""LaPE Segmenter for your own folders of images and label maps (docs/custom_data.md).

    LAPE_DATA_ROOT=data/streets LAPE_CLASSES='road,house,tree' LAPE_MAX_ITERS=20000 \
        python tools/train.py configs/custom/segmenter_deit-t-lape_mask_image-folders.py
"""

_base_ = [
    '../_base_/models/segmenter_deit-t_mask.py',
    '../_base_/datasets/ade20k.py',
    '../_base_/schedules/schedule_160k.py',
    '../_base_/default_runtime_mmseg.py',
]
from mmlape.training import environment_options, vit_arch, vit_weights  # noqa: E402

options = environment_options(
    'LAPE_',
    dict(
        data_root=str,
        classes=tuple,
        train_img='images/train',
        val_img='images/val',
        train_ann='annotations/train',
        val_ann='annotations/val',
        img_suffix='.jpg',
        ann_suffix='.png',
        reduce_zero_label=False,
        max_iters=20000,
        batch_size=8,
        num_workers=2,
        lr=1e-4,
        img_scale=(2048, 512),
        crop_size=512,
        vit='deit-tiny',
        weights='deit',
    ),
)
data_from = 'LAPE_DATA_ROOT names the data folder (docs/custom_data.md)'
data_root = options['data_root']
max_iters = options['max_iters']
crop_size = (options['crop_size'],) * 2
arch = vit_arch(options['vit'])
weights = vit_weights(options['weights'], options['vit'])

model = dict(
    data_preprocessor=dict(size=crop_size),
    backbone=dict(
        arch=dict(_delete_=True, **arch),
        img_size=options['crop_size'],
        joining=dict(type='mmlape.LaPE'),
        init_cfg=weights and dict(_delete_=True, **weights),
    ),
    decode_head=dict(
        in_channels=arch['embed_dims'],
        channels=arch['embed_dims'],
        embed_dims=arch['embed_dims'],
        num_heads=arch['num_heads'],
        num_classes=len(options['classes']),
    ),
    # Neighbouring windows share a sixteenth, as 480 of 512 do.
    test_cfg=dict(crop_size=crop_size, stride=(options['crop_size'] * 15 // 16,) * 2),
)

load_annotations = dict(type='LoadAnnotations')
train_pipeline = [
    dict(type='LoadImageFromFile'),
    load_annotations,
    dict(type='RandomResize', scale=options['img_scale'], ratio_range=(0.5, 2.0), keep_ratio=True),
    dict(type='RandomCrop', crop_size=crop_size, cat_max_ratio=0.75),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),
    dict(type='PackSegInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=options['img_scale'], keep_ratio=True),
    load_annotations,
    dict(type='PackSegInputs'),
]
dataset = dict(
    _delete_=True,
    type='BaseSegDataset',
    data_root=data_root,
    metainfo=dict(classes=options['classes']),
    img_suffix=options['img_suffix'],
    seg_map_suffix=options['ann_suffix'],
    reduce_zero_label=options['reduce_zero_label'],
)
loader = dict(num_workers=options['num_workers'], persistent_workers=options['num_workers'] > 0)
train_dataloader = dict(
    loader,
    batch_size=options['batch_size'],
    dataset=dict(
        dataset,
        data_prefix=dict(img_path=options['train_img'], seg_map_path=options['train_ann']),
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    loader,
    dataset=dict(
        dataset,
        data_prefix=dict(img_path=options['val_img'], seg_map_path=options['val_ann']),
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
del arch, weights, dataset, loader, load_annotations

val_interval = max(max_iters // 10, 1)
train_cfg = dict(max_iters=max_iters, val_interval=val_interval)
default_hooks = dict(checkpoint=dict(interval=val_interval))
warmup = max(min(200, max_iters // 10), 1)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=warmup),
    dict(type='PolyLR', eta_min=1e-6, power=0.9, begin=warmup, end=max_iters, by_epoch=False),
]
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=options['lr'], weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(
        custom_keys={
            'pos_embed': dict(decay_mult=0.0),
            'cls_token': dict(decay_mult=0.0),
            'norm': dict(decay_mult=0.0),
            'bias': dict(decay_mult=0.0),
        }
    ),
)
auto_scale_lr = dict(base_batch_size=options['batch_size'])

runner_type = 'mmlape.EarlyHookRunner'
custom_hooks = [dict(type='mmlape.CheckDataHook')]
