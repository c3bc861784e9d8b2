# Digit scenes, label maps; built by tools/dataset_converters/digit_scenes.py (or by tools/demo.py).
data_from = '`mmlape build digit_scenes data/digit_scenes` makes them (docs/index.md#the-demo)'
data_root = 'data/digit_scenes/'
metainfo = dict(
    classes=('background', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9'),
    palette=[
        (0, 0, 0),
        (230, 25, 75), (60, 180, 75), (255, 225, 25), (0, 130, 200), (245, 130, 48),
        (145, 30, 180), (70, 240, 240), (240, 50, 230), (210, 245, 60), (250, 190, 212),
    ],
)  # fmt: skip

# No flip: a mirrored digit is not a digit.
train_pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=False),
    dict(type='PackSegInputs'),
]
test_pipeline = train_pipeline
train_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        img_suffix='.jpg',
        seg_map_suffix='.png',
        metainfo=metainfo,
        pipeline=train_pipeline,
    ),
)
val_dataloader = dict(
    batch_size=8,
    num_workers=0,
    persistent_workers=False,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        img_suffix='.jpg',
        seg_map_suffix='.png',
        metainfo=metainfo,
        pipeline=test_pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
