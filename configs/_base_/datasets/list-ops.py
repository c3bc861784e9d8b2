"""Long ListOps: 96,000 expressions of up to 2000 tokens for training, 2000 for validation, 2000 for testing; batches of
32, padded to their longest.

Closing brackets are read. Long-Range Arena's reader dropped them by mistake until 4 March 2021 (commit c209b2a); to
compare with models of before, set ``brackets=False`` in all three data sets.
"""

data_from = '`mmlape build list_ops data/list_ops` makes them (configs/listops/README.md)'
data_preprocessor = dict(num_classes=10)  # pads with 0, and changes nothing

dataset = dict(
    type='mmlape.ListOps',
    data_root='data/list_ops',
    ann_file='annotations/basic_train.tsv',
    brackets=True,
    max_length=2000,
    pipeline=[dict(type='PackInputs')],
)
train_dataloader = dict(
    batch_size=32,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='InfiniteSampler', shuffle=True),
    dataset=dataset,
)
val_dataloader = dict(
    batch_size=32,
    num_workers=2,
    persistent_workers=True,
    sampler=dict(type='DefaultSampler', shuffle=False),
    dataset=dict(dataset, ann_file='annotations/basic_val.tsv'),
)
test_dataloader = dict(val_dataloader, dataset=dict(dataset, ann_file='annotations/basic_test.tsv'))
del dataset
val_evaluator = dict(type='Accuracy', topk=(1,))
test_evaluator = val_evaluator
