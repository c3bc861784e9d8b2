"""The models of ``mmlape fit`` and the configs that it writes for them."""

import dataclasses
import json
import os
import runpy
import sys
from pathlib import Path

import pytest
import torch
from config_utils import REPO
from mmengine.config import Config
from mmengine.dataset import pseudo_collate
from mmengine.registry import DATASETS, PARAM_SCHEDULERS, init_default_scope
from mmengine.registry import MODELS as BUILT
from own_data import coco, image, names

from mmlape.apps.fit import MODELS, FitOptions, OwnData, Part, config_text, find_data, find_model
from mmlape.apps.fit.config import _BOX_STEPS, _MAP_RANGES, _MAP_STEPS, data_root
from mmlape.apps.fit.model_changes import _BOX_SCALES, check_weights_are_there
from mmlape.apps.fit.models import DEFAULTS, listing
from mmlape.apps.fit.options import AUGMENTATIONS
from mmlape.checkpoints.strangers import config_of_stranger
from mmlape.config_text import as_plain
from mmlape.shipped import read_config

BOXES = OwnData(
    'detect', 'COCO', ('a', 'b', 'c'), Part('/d/train', '/d/train.json', 9), Part('/d/val', '/d/val.json', 3)
)  # fmt: skip
MAPS = OwnData(
    'segment', 'label maps', ('a', 'b', 'c'),
    Part('/d/images/train', '', 9, '/d/masks/train'), Part('/d/images/val', '/o/val.txt', 3, '/d/masks/val'),
    '.tif', '.png',
)  # fmt: skip
ROWS = [(name, task) for name, row in MODELS.items() for task in row.tasks]


def data_for(task):
    return MAPS if task == 'segment' else dataclasses.replace(BOXES, task=task)


def read(name, task, data=None, **options):
    text = config_text(data or data_for(task), MODELS[name], FitOptions(**options), Path('runs/x'))
    return text, Config.fromstring(text, '.py')


def test_names_of_classes_may_hold_spaces_and_quotes():
    """And many of them, over several lines."""
    for classes in (
        [f'class {number}' for number in range(150)],
        ["crow's foot", 'a "b"', 'c\\d'],
        ['a'],
    ):
        _, cfg = read('segmenter', 'segment', dataclasses.replace(MAPS, classes=tuple(classes)))
        assert cfg.classes == tuple(classes)


@pytest.mark.parametrize(
    ('name', 'most', 'limits'),
    [
        ('micro-adapter', 40, [300, 100]),
        ('micro-adapter', 369, [369, 738]),
        ('lape-adapter', 60, [1000, 120]),
        ('dtn-pvt', 369, [738]),
    ],
)
def test_limits_are_above_the_objects_of_an_image(name, most, limits):
    task = MODELS[name].tasks[0]
    _, cfg = read(name, task, dataclasses.replace(data_for(task), most=most))
    assert values(cfg.model.test_cfg, 'max_per_img') == limits


def values(config, name):
    """All values of entries of that name."""
    found = [config[name]] if name in config else []
    for value in config.values():
        found += values(value, name) if isinstance(value, dict) else []
    return found


@pytest.mark.parametrize(('name', 'task'), ROWS)
def test_a_row_is_a_short_config_for_these_classes(name, task):
    row = MODELS[name]
    text, cfg = read(name, task, weights='none', size=96, lr=0.5)
    assert len(text.splitlines()) < 85
    assert set(values(cfg.model, 'num_classes')) == {3}
    assert [
        len(weights) for weights in values(cfg.model, 'class_weight') if isinstance(weights, list)
    ] in ([], [4])
    assert cfg.optim_wrapper.optimizer.type == 'AdamW'
    assert cfg.optim_wrapper.optimizer.lr == 0.5
    # Its checkpoints predict without --trust.
    assert config_of_stranger(as_plain(cfg).pretty_text).model.type == cfg.model.type
    assert (cfg.train_cfg.max_epochs, cfg.work_dir) == (24, os.path.abspath('runs/x/training'))
    init_default_scope(cfg.default_scope)
    # Without memory and time, where heads do not compute with their first values.
    with torch.device('cpu' if task == 'segment' else 'meta'):
        model = BUILT.build(cfg.model)
    parameters = sum(weight.numel() for weight in model.parameters()) / 1e6
    if task == row.tasks[0]:
        assert round(parameters, 1) == row.parameters
    assert getattr(getattr(model, 'roi_head', None), 'with_mask', False) == (task == 'instance')


def test_it_names_its_command(monkeypatch, tmp_path):
    """Without paths; the options that it names are those that it was made with."""
    cfg = read('micro-adapter', 'detect', size=96, lr=0.5, ema=True, weights='none')[1]
    monkeypatch.chdir(tmp_path)
    os.makedirs('IMAGES/train')
    monkeypatch.setattr(sys, 'argv', cfg.made_by.split()[1:])
    options = runpy.run_path(str(REPO / 'tools' / 'fit.py'))['parse_arguments']()
    assert (options.model, options.task, str(options.data)) == (
        'micro-adapter', 'detect', 'IMAGES',
    )  # fmt: skip
    assert (options.size, options.lr, options.ema, options.weights) == (96, 0.5, True, 'none')
    assert (options.epochs, options.frozen) == (24, False)


def test_data_sets_read_the_parts():
    cfg = read('micro-adapter', 'detect')[1]
    train, test = cfg.train_dataloader.dataset, cfg.test_dataloader.dataset
    assert (train.data_root, train.ann_file, train.data_prefix.img) == ('/d', 'train.json', 'train')
    assert (test.ann_file, test.data_prefix.img) == ('val.json', 'val')
    assert cfg.val_evaluator.ann_file == '/d/val.json'
    cfg = read('micro-segmenter', 'segment')[1]
    train, test = cfg.train_dataloader.dataset, cfg.val_dataloader.dataset
    assert dict(train.data_prefix) == dict(img_path='images/train', seg_map_path='masks/train')
    assert (train.ann_file, test.ann_file) == ('', '/o/val.txt')
    assert (train.img_suffix, train.seg_map_suffix) == ('.tif', '.png')


def test_paths_elsewhere_stay_whole():
    data = dataclasses.replace(
        BOXES, train=Part('/d', '/o/train.json', 9), val=Part('/d', '/o/val.json', 3)
    )
    assert data_root(data) == '/d'
    cfg = read('micro-adapter', 'detect', data)[1]
    assert cfg.train_dataloader.dataset.ann_file == '/o/train.json'
    assert cfg.train_dataloader.dataset.data_prefix.img == ''
    assert cfg.val_evaluator.ann_file == '/o/val.json'


def test_without_a_validation_part_nothing_is_validated():
    cfg = read('micro-adapter', 'detect', dataclasses.replace(BOXES, val=None))[1]
    assert cfg.val_cfg is cfg.val_dataloader is cfg.val_evaluator is None
    assert cfg.default_hooks.checkpoint.save_best is None
    assert cfg.test_dataloader.dataset.ann_file == cfg.train_dataloader.dataset.ann_file


def test_options_reach_the_config():
    _, cfg = read(
        'micro-segmenter', 'segment', epochs=50, batch=4, size=160, augment='strong', ema=True, patience=3,
        workers=0, seed=7,
    )  # fmt: skip
    assert (cfg.train_dataloader.batch_size, cfg.train_dataloader.num_workers) == (4, 0)
    assert (cfg.train_cfg.max_epochs, cfg.train_cfg.val_interval, cfg.randomness.seed) == (50, 5, 7)
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    assert steps['RandomCrop'].crop_size == cfg.model.data_preprocessor.size == (160, 160)
    assert steps['RandomResize'].ratio_range == (0.5, 2.0)
    assert 'PhotoMetricDistortion' in steps
    hooks = {hook.type: hook for hook in cfg.custom_hooks}
    stop = hooks['EarlyStoppingHook']
    assert (stop.patience, stop.monitor, stop.min_delta) == (3, 'mIoU', 1e-4)
    assert cfg.default_hooks.report.out_dir == str(Path('runs/x').resolve())
    assert hooks['EMAHook'].momentum == 0.1  # 9 images in 50 epochs: 100 steps
    _, longer = read('micro-segmenter', 'segment', epochs=800, batch=4, ema=True)
    assert longer.custom_hooks[-1].momentum == 0.0125
    _, plain = read('micro-adapter', 'detect', augment='none')
    kinds = [step.type for step in plain.train_dataloader.dataset.pipeline]
    assert kinds == ['LoadImageFromFile', 'LoadAnnotations', 'Resize', 'PackDetInputs']


def test_images_without_a_box_are_negatives_if_asked_for(tmp_path):
    """Of four images, one has boxes; a batch may have none."""
    coco(tmp_path / 'train.json', names(4))
    content = json.loads((tmp_path / 'train.json').read_text())
    content['annotations'] = content['annotations'][:1]
    (tmp_path / 'train.json').write_text(json.dumps(content))
    for name in names(4):
        image(tmp_path / name)
    data = find_data(tmp_path, tmp_path / 'out', val=0)
    data = dataclasses.replace(
        data, train=dataclasses.replace(data.train, ann_file=str(tmp_path / 'train.json'))
    )
    init_default_scope('mmdet')
    for negatives, count in ((False, 1), (True, 4)):
        _, cfg = read('micro-adapter', 'detect', data, negatives=negatives, weights='none', size=64)
        dataset = DATASETS.build(cfg.train_dataloader.dataset)
        assert len(dataset) == count
        assert cfg.train_dataloader.drop_last == negatives
    model = BUILT.build(cfg.model)
    model.init_weights()
    batch = model.data_preprocessor(pseudo_collate([dataset[1], dataset[2]]), training=True)
    assert not any(len(sample.gt_instances) for sample in batch['data_samples'])
    losses = model(**batch, mode='loss')
    each = [x for loss in losses.values() for x in (loss if isinstance(loss, list) else [loss])]
    assert all(torch.isfinite(x).all() for x in each)
    with pytest.raises(ValueError, match='--negatives is for boxes'):
        read('segmenter', 'segment', negatives=True)


def test_what_is_trained_of_the_backbone():
    _, cfg = read('lape-adapter', 'detect', lora=4)
    assert cfg.model.backbone.vit.lora == dict(rank=4) and 'lora' not in cfg.model.backbone
    _, cfg = read('lape-adapter', 'detect', frozen=True)
    assert cfg.model.backbone.vit.frozen_stages == 12
    _, cfg = read('dtn-pvt', 'detect', frozen=True, views=8, epochs=20, size=200, seed=5)
    assert cfg.model.backbone.frozen_stages == 4 and cfg.train_cfg.max_epochs == 3
    assert cfg.model.data_preprocessor.batch_augments == [
        dict(type='BatchFixedSizePad', size=(250, 250), pad_mask=False)
    ]
    assert (cfg.train_dataloader.dataset.type, cfg.train_dataloader.dataset.views) == (
        'mmlape.SeededViews', 8
    )  # fmt: skip
    hooks = {hook.type: hook for hook in cfg.custom_hooks}
    assert hooks['mmlape.CachedFeaturesHook'].folder.endswith('/features')
    _, cfg = read('dtn-pvt', 'detect')
    assert cfg.train_dataloader.dataset.type == 'CocoDataset'
    assert cfg.model.data_preprocessor.batch_augments is None


@pytest.mark.parametrize(
    ('weights', 'expected'),
    [
        ('default', dict(source='deit', checkpoint='https://')),
        ('none', None),
        *(
            (f'mine.{end}', dict(source='deit', checkpoint=f'mine.{end}'))
            for end in ('pth', 'pt', 'bin')
        ),
        ('timm:m.safetensors', dict(source='timm', checkpoint='m.safetensors')),
    ],
)
def test_weights(weights, expected):
    found = read('lape-adapter', 'detect', weights=weights)[1].model.backbone.vit.init_cfg
    if expected is None:
        assert found is None
    else:
        assert found.source == expected['source']
        assert found.checkpoint.startswith(expected['checkpoint'])


def test_padding_of_cached_views_holds_the_largest():
    for name, steps in _BOX_STEPS.items():
        ranges = [
            step['ratio_range'][1]
            for step in eval(f'[{steps}]', dict(size=1))
            if 'ratio_range' in step
        ]
        assert _BOX_SCALES[name] == max([1.0, *ranges])


def test_weights_of_a_model_that_has_none():
    for name in ('micro-adapter', 'micro-segmenter'):
        task = MODELS[name].tasks[0]
        for weights in ('mmlape:mine.pth', 'mine.pth'):
            cfg = read(name, task, weights=weights)[1]
            found = (cfg.model.backbone.get('vit') or cfg.model.backbone).init_cfg
            assert found == dict(type='mmlape.Pretrained', source='mmlape', checkpoint='mine.pth')


def test_weights_that_cannot_be_had_name_the_way_out(tmp_path):
    cfg = read('lape-adapter', 'detect', weights=f'{tmp_path}/none.pth')[1]
    with pytest.raises(ValueError, match=r'none\.pth.*--weights none'):
        check_weights_are_there(cfg)
    check_weights_are_there(read('lape-adapter', 'detect', weights='none')[1])


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda: find_model('lape-adaptor', 'detect'), "no model 'lape-adaptor'.*lape-adapter"),
        (lambda: find_model('dtn-pvt', 'segment'), 'dtn-pvt is for detect.*use segmenter'),
        (lambda: FitOptions(epochs=0), '--epochs'),
        (lambda: FitOptions(lr=-1), '--lr'),
        (
            lambda: read('upernet', 'segment', batch=1),
            'at least 2 images per step, got --batch 1 and',
        ),
        (
            lambda: read(
                'upernet', 'segment', dataclasses.replace(MAPS, train=Part('i', '', 1, 'm'))
            ),
            'at least 2 images per step, got .* and 1 images',
        ),
        (lambda: FitOptions(augment='much'), '--augment.*strong'),
        (lambda: read('lape-adapter', 'detect', weights='much'), "--weights 'much'.*none"),
        (lambda: FitOptions(lora=0), '--lora'),
        (lambda: FitOptions(seed=2**32), r'--seed must be 0 to 4294967295'),
        (
            lambda: read('segmenter', 'segment', dataclasses.replace(MAPS, val=None), patience=2),
            '--patience 2 needs a validation part',
        ),
        (lambda: FitOptions(frozen=True, views=0), '--views'),
        (lambda: FitOptions(views=4), '--views goes with --frozen, got --views 4'),
        (lambda: FitOptions(lora=4, frozen=True), 'give --frozen or --lora, got both'),
        (
            lambda: read('micro-adapter', 'detect', lora=4),
            '--lora keeps .* random here: give --weights',
        ),
        (lambda: read('lape-adapter', 'detect', frozen=True, weights='none'), '--frozen keeps'),
        (
            lambda: read('lape-adapter', 'detect', frozen=True, views=4),
            '--views caches features .* in mmlape.ViTAdapter, modules around the ViT are trained',
        ),
    ],
)
def test_wrong_options_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_each_task_has_a_default_that_serves_it():
    assert all(task in MODELS[name].tasks for task, name in DEFAULTS.items())
    assert find_model(None, 'segment') is MODELS['segmenter']
    assert all(name in listing() for name in MODELS)


def test_a_base_is_found_after_a_move(tmp_path):
    text = read('micro-adapter', 'detect')[0]
    base = text.split('_base_ = ')[1].split('\n')[0]
    moved = text.replace(
        base, repr('/elsewhere/configs/' + base.strip("'").rpartition('/configs/')[2])
    )
    (tmp_path / 'fit.py').write_text(moved)
    cfg = read_config(tmp_path / 'fit.py')
    assert cfg.filename == str(tmp_path / 'fit.py')
    assert cfg.model.backbone.type == 'mmlape.ViTAdapter'
    (tmp_path / 'fit.py').write_text(moved.replace('vit-micro-adapter', 'vit-nano'))
    with pytest.raises(ValueError, match='vit-nano'):
        read_config(tmp_path / 'fit.py')


def test_a_base_beside_the_config_comes_first(tmp_path, monkeypatch):
    base = (
        'configs/swin/mask-rcnn_swin-t-lape_fpn_ms-3x_coco.py'  # a shipped config has this name too
    )
    for path, text in ((base, 'mine = True\n'), ('experiments/own.py', f"_base_ = '../{base}'\n")):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert read_config('experiments/own.py').mine
    (tmp_path / 'experiments/own.py').write_text('mine = (\n')
    with pytest.raises(ValueError, match=r'own\.py is no Python: .*was never closed'):
        read_config('experiments/own.py')


def test_schedules_count_the_images_that_are_trained_on():
    images = dataclasses.replace(BOXES.train, count=900, empty=880)
    _, cfg = read(
        'micro-adapter',
        'detect',
        dataclasses.replace(BOXES, train=images),
        batch=8,
        ema=True,
        epochs=10,
    )
    assert cfg.train_dataloader.drop_last
    assert cfg.param_scheduler[0].end == 2  # a tenth of 20 steps
    assert cfg.custom_hooks[-1].momentum == 0.1
    images = dataclasses.replace(images, empty=895)
    _, cfg = read('micro-adapter', 'detect', dataclasses.replace(BOXES, train=images), batch=8)
    assert not cfg.train_dataloader.drop_last


# Learning rates and sides of training images, by model.
RATES = {name: (1e-4, 512 if MODELS[name].tasks == ('segment',) else 640) for name in MODELS} | {
    'micro-adapter': (1e-3, 320), 'micro-segmenter': (2e-3, 224),
}  # fmt: skip


@pytest.mark.parametrize(('name', 'task'), ROWS)
def test_what_is_not_asked_for(name, task):
    """The recipe of a config without options: rates, warm-up, decay and augmentation."""
    _, cfg = read(name, task)
    rate, side = RATES[name]
    wrapper, (warmup, decay) = cfg.optim_wrapper, cfg.param_scheduler
    assert wrapper.optimizer.lr == rate
    assert (warmup.start_factor, warmup.end) == (0.01, 10)  # a tenth of 24 epochs of 4 steps
    assert (decay.T_max, decay.eta_min) == (24, pytest.approx(rate / 100))
    _, longer = read(name, task, epochs=9999)
    assert longer.param_scheduler[0].end == 200
    if name == 'segmenter':  # upstream's SGD is replaced
        assert (wrapper.optimizer.weight_decay, wrapper.clip_grad) == (0.05, dict(max_norm=1.0))
    if name == 'micro-adapter':
        assert cfg.model.rpn_head.anchor_generator.scales == [8]
    steps = {step.type: step for step in cfg.train_dataloader.dataset.pipeline}
    resize = steps['RandomResize']
    assert (max(resize.scale) // (4 if task == 'segment' else 1), resize.ratio_range) == (
        side,
        (0.75, 1.25),
    )
    assert steps['RandomFlip'].prob == 0.5
    assert task != 'segment' or steps['RandomCrop'].cat_max_ratio == 0.75


@pytest.mark.parametrize(('images', 'epochs', 'first'), [(9, 1, 1.0), (9, 3, 0.01), (20, 1, 1.0)])
def test_the_rate_rises_over_several_steps_or_not_at_all(images, epochs, first):
    """MMEngine's LinearLR with end=1 keeps its first factor: ten steps would all be at a hundredth of the rate."""
    data = dataclasses.replace(BOXES, train=dataclasses.replace(BOXES.train, count=images))
    _, cfg = read('micro-adapter', 'detect', data, epochs=epochs)
    steps = epochs * (images // 2)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    init_default_scope('mmengine')
    schedules = [
        PARAM_SCHEDULERS.build({**each, 'optimizer': optimizer}, default_args=dict(epoch_length=9))
        for each in cfg.param_scheduler
        if each.type == 'LinearLR'
    ]
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]['lr'])
        for schedule in schedules:
            schedule.step()
    assert rates[0] == first and rates[-1] == pytest.approx(1)


def test_every_augmentation_is_known_everywhere():
    for table in (_BOX_STEPS, _BOX_SCALES, _MAP_STEPS, _MAP_RANGES):
        assert tuple(table) == AUGMENTATIONS
