"""Mask R-CNN on the LaPE ViT-Adapter for your own COCO-format folder with masks (docs/custom_data.md).

    LAPE_DATA_ROOT=data/blood LAPE_CLASSES='RBC,WBC' LAPE_MAX_EPOCHS=24 \
        python tools/train.py configs/custom/mask-rcnn_deit-t-adapter-lape_fpn_coco-format.py
"""

_base_ = [
    '../_base_/models/mask-rcnn_deit-t-adapter_fpn.py',
    '../_base_/datasets/coco_instance.py',
    '../_base_/schedules/schedule_1x.py',
    '../_base_/default_runtime_mmdet.py',
]
import os.path as osp  # noqa: E402

from mmlape.training import environment_options, vit_arch, vit_weights  # noqa: E402

options = environment_options(
    'LAPE_',
    dict(
        data_root=str,
        classes=tuple,
        train_ann='annotations/train.json',
        val_ann='annotations/val.json',
        train_img='train',
        val_img='val',
        max_epochs=12,
        batch_size=2,
        num_workers=2,
        lr=1e-4,
        img_scale=(1333, 800),
        vit='deit-tiny',
        head_channels=256,
        weights='deit',
    ),
)
data_from = 'LAPE_DATA_ROOT names the data folder (docs/custom_data.md)'
data_root = options['data_root']
max_epochs = options['max_epochs']
metainfo = dict(classes=options['classes'])
arch = vit_arch(options['vit'])
weights = vit_weights(options['weights'], options['vit'])
num_classes = len(options['classes'])
channels = options['head_channels']

# Four interactions, each after a quarter of the layers; the last layer of each quarter attends globally.
_ends = [arch['depth'] * part // 4 - 1 for part in (1, 2, 3, 4)]
model = dict(
    backbone=dict(
        vit=dict(
            arch=dict(_delete_=True, **arch),
            window_size=[None if layer in _ends else 14 for layer in range(arch['depth'])],
            joining=dict(type='mmlape.LaPE'),
            init_cfg=weights and dict(_delete_=True, **weights),
        ),
        deform_num_heads=6 if arch['embed_dims'] % 6 == 0 else arch['num_heads'],
        interaction_indexes=[
            [first + 1, last] for first, last in zip([-1, *_ends], _ends, strict=False)
        ],
    ),
    neck=dict(in_channels=[arch['embed_dims']] * 4, out_channels=channels),
    rpn_head=dict(in_channels=channels, feat_channels=channels),
    roi_head=dict(
        bbox_roi_extractor=dict(out_channels=channels),
        bbox_head=dict(in_channels=channels, fc_out_channels=4 * channels, num_classes=num_classes),
        mask_roi_extractor=dict(out_channels=channels),
        mask_head=dict(in_channels=channels, conv_out_channels=channels, num_classes=num_classes),
    ),
)
del _ends, arch, weights, channels

load_annotations = dict(type='LoadAnnotations', with_bbox=True, with_mask=True)
train_pipeline = [
    dict(type='LoadImageFromFile'),
    load_annotations,
    dict(
        type='RandomResize', scale=options['img_scale'], ratio_range=(0.75, 1.25), keep_ratio=True
    ),
    dict(type='RandomFlip', prob=0.5),
    dict(type='PackDetInputs'),
]
test_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='Resize', scale=options['img_scale'], keep_ratio=True),
    load_annotations,
    dict(
        type='PackDetInputs',
        meta_keys=('img_id', 'img_path', 'ori_shape', 'img_shape', 'scale_factor'),
    ),
]
train_dataloader = dict(
    batch_size=options['batch_size'],
    num_workers=options['num_workers'],
    persistent_workers=options['num_workers'] > 0,
    dataset=dict(
        data_root=data_root,
        ann_file=options['train_ann'],
        data_prefix=dict(img=options['train_img']),
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    num_workers=options['num_workers'],
    persistent_workers=options['num_workers'] > 0,
    dataset=dict(
        data_root=data_root,
        ann_file=options['val_ann'],
        data_prefix=dict(img=options['val_img']),
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader
val_evaluator = dict(ann_file=osp.join(data_root, options['val_ann']))
test_evaluator = val_evaluator

train_cfg = dict(max_epochs=max_epochs)
param_scheduler = [
    dict(type='LinearLR', start_factor=0.01, by_epoch=False, begin=0, end=200),
    dict(
        type='MultiStepLR',
        begin=0,
        end=max_epochs,
        by_epoch=True,
        milestones=[round(max_epochs * 2 / 3), round(max_epochs * 11 / 12)],
        gamma=0.1,
    ),
]
optim_wrapper = dict(optimizer=dict(lr=options['lr']), clip_grad=dict(max_norm=35))
auto_scale_lr = dict(base_batch_size=options['batch_size'])

runner_type = 'mmlape.EarlyHookRunner'
custom_hooks = [dict(type='NumClassCheckHook'), dict(type='mmlape.CheckDataHook')]
