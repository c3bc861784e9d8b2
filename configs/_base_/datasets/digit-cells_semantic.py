# Digit cells; built by tools/experiment_position.py (or by mmlape.datasets.build_digit_cells).
data_root = 'data/digit_cells/'
# As mmlape.datasets.cell_classes() gives them.
metainfo = dict(
    classes=(
        'background',
        '0 in kind 0', '0 in kind 1', '0 in kind 2', '0 in kind 3',
        '1 in kind 0', '1 in kind 1', '1 in kind 2', '1 in kind 3',
        '4 in kind 0', '4 in kind 1', '4 in kind 2', '4 in kind 3',
    ),
    palette=[
        (0, 0, 0),
        (128, 0, 0), (180, 40, 40), (220, 90, 90), (255, 150, 150),
        (0, 96, 0), (40, 140, 40), (90, 190, 90), (150, 240, 150),
        (0, 0, 128), (40, 60, 190), (90, 110, 230), (150, 170, 255),
    ],
)  # fmt: skip

# No flip, no crop: they would move digits to other squares.
pipeline = [
    dict(type='LoadImageFromFile'),
    dict(type='LoadAnnotations', reduce_zero_label=False),
    dict(type='PackSegInputs'),
]
train_dataloader = dict(
    batch_size=32,
    num_workers=0,
    persistent_workers=False,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/train', seg_map_path='annotations/train'),
        img_suffix='.png',
        seg_map_suffix='.png',
        metainfo=metainfo,
        pipeline=pipeline,
    ),
)
val_dataloader = dict(
    batch_size=50,
    num_workers=0,
    persistent_workers=False,
    drop_last=False,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(
        type='BaseSegDataset',
        data_root=data_root,
        data_prefix=dict(img_path='images/val', seg_map_path='annotations/val'),
        img_suffix='.png',
        seg_map_suffix='.png',
        metainfo=metainfo,
        pipeline=pipeline,
    ),
)
test_dataloader = val_dataloader

val_evaluator = dict(type='IoUMetric', iou_metrics=['mIoU'])
test_evaluator = val_evaluator
