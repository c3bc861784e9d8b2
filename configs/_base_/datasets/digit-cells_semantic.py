# Digit cells, read as the digit scenes are; built by tools/experiments/position.py or build_digit_cells of
# mmlape.research.datasets.
_base_ = './digit-scenes_semantic.py'

data_from = '`mmlape experiment position` makes them (docs/evidence.md#position-where-it-decides)'
data_root = 'data/digit_cells/'
# As mmlape.research.datasets.cell_classes() gives them.
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

dataset = dict(data_root=data_root, img_suffix='.png', metainfo=metainfo)
train_dataloader = dict(batch_size=32, dataset=dataset)
val_dataloader = dict(batch_size=50, dataset=dataset)
test_dataloader = val_dataloader
del dataset
