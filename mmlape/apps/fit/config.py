"""The config of ``mmlape fit``: short, for people, with a shipped config as its base."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmlape.config_text import value_text, without_templates
from mmlape.shipped import find_config

from .data import OwnData, Part
from .model_changes import model_changes
from .models import MODELS, FitModel
from .options import FitOptions
from .own_weights import own_checkpoint

_BOX_STEPS = {
    'none': '',
    'light': """
    dict(type='RandomResize', scale=(size, size), ratio_range=(0.75, 1.25), keep_ratio=True),
    dict(type='RandomFlip', prob=0.5),""",
    'strong': """
    dict(type='RandomResize', scale=(size, size), ratio_range=(0.5, 1.5), keep_ratio=True),
    dict(type='RandomFlip', prob=[0.25, 0.25], direction=['horizontal', 'vertical']),
    dict(type='PhotoMetricDistortion'),""",
}
_MAP_STEPS = {
    'none': '',
    'light': """
    dict(type='RandomFlip', prob=0.5),""",
    'strong': """
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),""",
}
_MAP_RANGES = {'none': (1.0, 1.0), 'light': (0.75, 1.25), 'strong': (0.5, 2.0)}


def config_text(
    data: OwnData,
    row: FitModel,
    options: FitOptions,
    out: Path,
    loader: Mapping[str, Any] | None = None,
) -> str:
    """The text of a config that trains ``row`` on ``data`` with results in ``out``; ``loader``: the config of the
    transform that reads the images, where it is not MMCV's (:func:`~mmlape.apps.fit.channels.loader_of`).

    Raises:
        ValueError: If the weights are none that the model can take, or the batch is too small for it.
    """
    if options.negatives and data.task == 'segment':
        raise ValueError('--negatives is for boxes; in label maps, all pixels are trained on')
    images = _trained_images(data, options)
    if min(options.batch, images) < row.least_batch:
        raise ValueError(
            f'this model trains on at least {row.least_batch} images per step, got --batch {options.batch} and '
            f'{images} images'
        )
    base = find_config(row.config)
    cfg = Config.fromfile(base)
    own = own_checkpoint(options.weights)
    parts = dict(
        name=next(name for name, each in MODELS.items() if each is row),
        good_for=row.good_for.rpartition(': ')[2],
        out=out.as_posix(),
        data=data,
        base=base.resolve().as_posix(),
        options=options,
        size=options.size or row.size,
        lr=options.lr or row.lr,
        loader=loader or dict(type='LoadImageFromFile'),
        # Of colours as people see them.
        augment_colours=loader is None,
        model=value_text(model_changes(cfg, data, row, options, loader, own is not None)),
        optimizer=_optimizer(cfg),
        load_from=f'load_from = {whole_weights(out)!r}\n' if own else '',
    )
    text = _head(parts) + (_maps if data.task == 'segment' else _boxes)(parts) + _tail(parts)
    return without_templates(text)


def whole_weights(out: Path) -> str:
    """The file that a training in ``out`` starts from, if that is a whole model."""
    return os.path.abspath(out / 'data' / 'weights.pth')


def _trained_images(data: OwnData, options: FitOptions) -> int:
    count = data.train.count - (0 if options.negatives else data.train.empty)
    return count * (options.views or 1)


def _optimizer(cfg: Config) -> str:
    """AdamW with the rate ``lr``: the config's own, or that for fine-tuning a ViT where it has another optimizer."""
    if cfg.optim_wrapper.optimizer.type == 'AdamW':
        return 'optim_wrapper = dict(optimizer=dict(lr=lr))'
    return '''spared = {key: dict(decay_mult=0.0) for key in ('pos_embed', 'cls_token', 'norm', 'bias')}
optim_wrapper = dict(
    optimizer=dict(_delete_=True, type='AdamW', lr=lr, weight_decay=0.05),
    clip_grad=dict(max_norm=1.0),
    paramwise_cfg=dict(custom_keys=spared),
)'''


def _head(parts: dict[str, Any]) -> str:
    # No name of a folder or class stands outside of a string literal: three quotes would end the docstring.
    data, options, out = parts['data'], parts['options'], parts['out']
    return f'''"""{parts['good_for']}, on {data.format} data: written by `mmlape fit`, for you to change.

`mmlape train` with this file trains it again, and `mmlape predict` with its work_dir answers.
"""

_base_ = {parts['base']!r}

made_by = {_command(parts)!r}
classes = {value_text(data.classes)}
size, batch, epochs, lr = {parts['size']}, {options.batch}, {_epochs(options)}, {parts['lr']}
data_root, data_from = {data_root(data)!r}, None
work_dir = {os.path.abspath(out + '/training')!r}
randomness = dict(seed={options.seed})
model = {parts['model']}
load_image = {value_text(parts['loader'])}
{parts['load_from']}'''


def _command(parts: dict[str, Any]) -> str:
    """The command that writes such a config, for a model card: without names of files."""
    data, options = parts['data'], parts['options']
    text = f'mmlape fit IMAGES --model {parts["name"]} --task {data.task}'
    for part in fields(options):
        value = getattr(options, part.name)
        if value == part.default:
            continue
        if part.name == 'weights' and value != 'none':
            value = 'FILE'
        text += f' --{part.name}' + (f' {value}' if value is not True else '')
    return text


def _epochs(options: FitOptions) -> int:
    """Passes over all that a data set holds, views of images among them."""
    return -(-options.epochs // (options.views or 1))


def _augmentation(steps: Mapping[str, str], parts: dict[str, Any]) -> str:
    """The steps of an augmentation; of colours only where images have the usual ones."""
    lines = steps[parts['options'].augment].splitlines(keepends=True)
    kept = [line for line in lines if parts['augment_colours'] or 'PhotoMetric' not in line]
    return ''.join(kept).rstrip('\n')


def _boxes(parts: dict[str, Any]) -> str:
    data = parts['data']
    load = 'with_bbox=True' + (', with_mask=True' if data.task == 'instance' else '')
    resize = "\n    dict(type='Resize', scale=(size, size), keep_ratio=True),"
    test, metric = data.val or data.train, ['bbox'] + ['segm'] * (data.task == 'instance')
    return f'''
train_pipeline = [
    load_image,
    dict(type='LoadAnnotations', {load}),{_augmentation(_BOX_STEPS, parts) or resize}
    dict(type='PackDetInputs'),
]
test_pipeline = [
    load_image,{resize}
    dict(type='LoadAnnotations', {load}),
    dict(type='PackDetInputs'),
]
data = dict(type='CocoDataset', data_root=data_root, metainfo=dict(classes=classes))
train_data = dict(
    data_prefix=dict(img={_below(data, data.train.images)!r}),
    ann_file={_below(data, data.train.ann_file)!r},
    filter_cfg=dict(filter_empty_gt={not parts['options'].negatives}, min_size=1),
    pipeline=train_pipeline,
)
test_data = dict(
    data_prefix=dict(img={_below(data, test.images)!r}),
    ann_file={_below(data, test.ann_file)!r},
    test_mode=True,
    pipeline=test_pipeline,
)
test_evaluator = dict(
    _delete_=True, type='CocoMetric', metric={metric}, classwise=True,
    ann_file={_in_full(data, test.ann_file)},
)
'''


def _maps(parts: dict[str, Any]) -> str:
    data, augment = parts['data'], parts['options'].augment
    test, suffixes = data.val or data.train, (data.img_suffix, data.map_suffix)
    return f'''
train_pipeline = [
    load_image,
    dict(type='LoadAnnotations'),
    dict(type='RandomResize', scale=(4 * size, size), ratio_range={_MAP_RANGES[augment]}, keep_ratio=True),
    dict(type='RandomCrop', crop_size=(size, size), cat_max_ratio=0.75),{_augmentation(_MAP_STEPS, parts)}
    dict(type='PackSegInputs'),
]
test_pipeline = [
    load_image,
    dict(type='Resize', scale=(4 * size, size), keep_ratio=True),
    dict(type='LoadAnnotations'),
    dict(type='PackSegInputs'),
]
data = dict(type='BaseSegDataset', data_root=data_root, metainfo=dict(classes=classes))
{'' if suffixes == ('.jpg', '.png') else _SUFFIXES.format(*suffixes)}train_data = dict(
    data_prefix={_folders(data, data.train)},
    ann_file={_below(data, data.train.ann_file)!r},
    pipeline=train_pipeline,
)
test_data = dict(
    data_prefix={_folders(data, test)},
    ann_file={_below(data, test.ann_file)!r},
    pipeline=test_pipeline,
)
test_evaluator = dict(_delete_=True, type='IoUMetric', iou_metrics=['mIoU'])
'''


_SUFFIXES = 'data.update(img_suffix={!r}, seg_map_suffix={!r})\n'


def _folders(data: OwnData, part: Part) -> str:
    images, maps = _below(data, part.images), _below(data, part.label_maps)
    return f'dict(img_path={images!r}, seg_map_path={maps!r})'


def data_root(data: OwnData) -> str:
    """The folder that all image folders and label maps share."""
    parts = [part for part in (data.train, data.val) if part]
    folders = [part.images for part in parts] + [
        part.label_maps for part in parts if part.label_maps
    ]
    return os.path.commonpath([os.path.abspath(folder) for folder in folders])


def _below(data: OwnData, path: str) -> str:
    """A path seen from the data root, or in full where it is elsewhere; '' stays."""
    root, full = data_root(data), os.path.abspath(path)
    inside = path and os.path.commonpath([root, full]) == root
    return os.path.relpath(full, root).replace('.', '', full == root) if inside else path and full


def _in_full(data: OwnData, path: str) -> str:
    """The expression for a path that is not joined with the data root by upstream."""
    below = _below(data, path)
    return repr(below) if os.path.isabs(below) else f'data_root + {"/" + below!r}'


def _tail(parts: dict[str, Any]) -> str:
    data, options, out = parts['data'], parts['options'], os.path.abspath(parts['out'])
    images = _trained_images(data, options)
    steps = max(1, images // options.batch)
    best = {'detect': 'coco/bbox_mAP', 'instance': 'coco/segm_mAP'}.get(data.task, 'mIoU')
    epochs = _epochs(options)
    warmup, interval = min(200, -(-epochs * steps // 10)), max(1, epochs // 10)
    # MMEngine's LinearLR with end=1 has no step in which it could rise: it would keep its first factor for ever.
    rise = f"\n    dict(type='LinearLR', start_factor=0.01, by_epoch=False, end={warmup}),"
    validation = (
        'val_dataloader, val_evaluator = test_dataloader, test_evaluator'
        if data.val
        else 'val_cfg = val_dataloader = val_evaluator = None  # there is no validation part'
    )
    hooks, dataset = ["dict(type='mmlape.CheckDataHook')"], 'dict(data, **train_data)'
    if options.views:
        hooks.append(f"dict(type='mmlape.CachedFeaturesHook', folder={out + '/features'!r})")
        seeded = f"dict(type='mmlape.SeededViews', views={options.views}, seed={options.seed}"
        dataset = f'{seeded}, dataset={dataset})'
    if options.ema:
        # Over the last twentieth of the steps: a longer average would hold initial weights in a short training.
        momentum = round(min(0.1, 20 / (epochs * steps)), 5)
        hooks.append(f"dict(type='EMAHook', momentum={momentum}, update_buffers=True)")
    if options.patience:
        if not data.val:
            raise ValueError(f'--patience {options.patience} needs a validation part, not --val 0')
        hooks.append(
            # AP goes from 0 to 1, and MMEngine's own min_delta is 0.1.
            f"dict(type='EarlyStoppingHook', monitor={best!r}, min_delta=1e-4, patience={options.patience})"
        )
    return f'''
loader = dict(_delete_=True, num_workers={options.workers}, persistent_workers={options.workers > 0})
train_dataloader = dict(
    loader,
    batch_size=batch,
    drop_last={images > options.batch},
    sampler=dict(type='DefaultSampler', shuffle=True),
    dataset={dataset},
)
test_dataloader = dict(
    loader, sampler=dict(type='DefaultSampler', shuffle=False), dataset=dict(data, **test_data)
)
{validation}

train_cfg = dict(type='EpochBasedTrainLoop', max_epochs=epochs, val_interval={interval}, _delete_=True)
{parts['optimizer']}
param_scheduler = [{rise if warmup > 1 else ''}
    dict(type='CosineAnnealingLR', T_max=epochs, eta_min=lr / 100, convert_to_iter_based=True),
]
default_hooks = dict(
    logger=dict(interval=10, log_metric_by_epoch=True),
    checkpoint=dict(by_epoch=True, interval={interval}, max_keep_ckpts=2, save_best={best if data.val else None!r}),
    report=dict(type='mmlape.ReportHook', out_dir={out!r}),
)
log_processor = dict(by_epoch=True)
custom_hooks = [{', '.join(hooks)}]
runner_type = 'mmlape.EarlyHookRunner'
'''
