"""The config of ``mmlape fit``: short, for people, with a shipped config as its base."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmlape.checkpoints import Pretrained
from mmlape.checks import check_number, check_option, check_positive_int
from mmlape.config_text import value_text, without_templates
from mmlape.registry import MODELS
from mmlape.shipped import find_config

from .data import OwnData, Part
from .models import FitModel
from .own_weights import own_checkpoint

_ENDS_IN_WEIGHTS = ('.pth', '.pt', '.bin', '.safetensors')
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
_BOX_SCALES = {'none': 1.0, 'light': 1.25, 'strong': 1.5}  # the largest
_MAP_STEPS = {
    'none': '',
    'light': """
    dict(type='RandomFlip', prob=0.5),""",
    'strong': """
    dict(type='RandomFlip', prob=0.5),
    dict(type='PhotoMetricDistortion'),""",
}
_MAP_RANGES = {'none': (1.0, 1.0), 'light': (0.75, 1.25), 'strong': (0.5, 2.0)}
AUGMENTATIONS = tuple(_BOX_STEPS)


@dataclass(frozen=True)
class FitOptions:
    """How ``mmlape fit`` trains; checked when made.

    Attributes:
        epochs: Passes over the training images.
        batch: Images per step.
        size: Side in pixels; None for the model's.
        lr: Learning rate; None for the model's.
        weights: ``'default'``, ``'none'``, a file in the format of the model's own weights, ``SOURCE:FILE``, or the
            checkpoint or work dir of a whole model.
        augment: ``'none'``, ``'light'`` or ``'strong'``.
        lora: Rank of low-rank updates, the only trained part of the backbone (of its ViT); None: all of it is trained.
        frozen: The backbone (its ViT) is frozen.
        views: With ``frozen``, the number of views of each image whose features are cached; None: no cache.
        ema: Validate and save an exponential moving average of the weights too.
        patience: Stop after so many validations without a better result; None: never.
        workers: Processes that load images.
        seed: Of weights, order and augmentation.

    Raises:
        TypeError, ValueError: If a value has another type or is out of range.
    """

    epochs: int = 24
    batch: int = 2
    size: int | None = None
    lr: float | None = None
    weights: str = 'default'
    augment: str = 'light'
    lora: int | None = None
    frozen: bool = False
    views: int | None = None
    ema: bool = False
    patience: int | None = None
    workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ('epochs', 'batch'):
            check_positive_int(f'--{name}', getattr(self, name))
        for name in ('workers', 'seed'):
            check_positive_int(f'--{name}', getattr(self, name), minimum=0)
        if self.size is not None:
            check_positive_int('--size', self.size, minimum=32)
        for name in ('patience', 'lora', 'views'):
            if getattr(self, name) is not None:
                check_positive_int(f'--{name}', getattr(self, name))
        if self.lora and self.frozen:
            raise ValueError(f'give --frozen or --lora, got both, --lora {self.lora}')
        if self.views and not self.frozen:
            raise ValueError(f'--views goes with --frozen, got --views {self.views} without it')
        if self.lr is not None:
            check_number('--lr', self.lr, above=0)
        check_option('--augment', self.augment, AUGMENTATIONS)
        if self.seed >= 2**32:
            raise ValueError(f'--seed must be below 2^32, got {self.seed}')


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
        model=value_text(_model_changes(cfg, data, row, options, loader, own is not None)),
        optimizer=_optimizer(cfg),
        load_from=f'load_from = {whole_weights(out)!r}\n' if own else '',
    )
    text = _head(parts) + (_maps if data.task == 'segment' else _boxes)(parts) + _tail(parts)
    return without_templates(text)


def whole_weights(out: Path) -> str:
    """The file that a training in ``out`` starts from, if that is a whole model."""
    return os.path.abspath(out / 'data' / 'weights.pth')


def weights_of(cfg: Config) -> tuple[tuple[str, ...], Mapping[str, Any] | None]:
    """Where a model's ``init_cfg`` for its published weights stands, and what it is (None: random weights)."""
    backbone = cfg.model.backbone
    place = ('backbone', 'vit', 'init_cfg') if 'vit' in backbone else ('backbone', 'init_cfg')
    part = backbone.vit if 'vit' in backbone else backbone
    return place, part.get('init_cfg')


def check_weights_are_there(cfg: Config) -> None:
    """Read the weights that a config starts from, which downloads them where they are not cached.

    Raises:
        ValueError: If they cannot be had, with what to do.
    """
    weights = dict(weights_of(cfg)[1] or {})
    if not weights:
        return
    weights.pop('type')
    arch = cfg.model.backbone.get('vit', cfg.model.backbone).get('arch')
    if 'checkpoint' not in weights and isinstance(arch, str):
        weights.setdefault('model', arch)
    try:
        Pretrained(**weights).read()
    except (OSError, ValueError) as error:
        raise ValueError(
            f'{error}; or start from other weights: --weights none, --weights FILE'
        ) from None


def _model_changes(
    cfg: Config,
    data: OwnData,
    row: FitModel,
    options: FitOptions,
    loader: Mapping[str, Any] | None,
    own: bool,
) -> dict[str, Any]:
    """Return the changes of ``model`` for these classes, this size, these weights and these
    channels; ``own``: of a whole model."""
    changes: dict[str, Any] = {}
    size = options.size or row.size
    for path, value in _entries(cfg.model):
        if path[-1] == 'num_classes':
            _set(changes, path, len(data.classes))
        elif path[-1] == 'class_weight' and path[-2] == 'loss_cls' and isinstance(value, list):
            # Mask2Former: the last weight is that of "no object".
            _set(changes, path, [1.0] * len(data.classes) + value[-1:])
    if data.task == 'segment':
        crop = cfg.model.test_cfg.get('crop_size')
        _set(changes, ('data_preprocessor', 'size'), (size, size))
        if cfg.model.data_preprocessor.get('test_cfg'):
            _set(changes, ('data_preprocessor', 'test_cfg'), None)  # it pads to the base's own size
        if crop is not None:
            share = cfg.model.test_cfg.stride[0] / crop[0]
            _set(changes, ('test_cfg', 'crop_size'), (size, size))
            _set(changes, ('test_cfg', 'stride'), (round(size * share),) * 2)
    else:
        _set(changes, ('data_preprocessor', 'batch_augments'), _padding(data, size, options))
        if data.task == 'detect' and cfg.model.type == 'MaskRCNN':
            changes['type'] = 'FasterRCNN'
            _set(changes, ('data_preprocessor', 'pad_mask'), False)
            changes['roi_head'].update(mask_roi_extractor=None, mask_head=None)
    for path, value in _entries(row.changes):
        if not isinstance(value, Mapping):
            _set(changes, path, value)
    # Images with more objects than these limits would lose some. More proposals than needed cost AP.
    limits = dict(_entries(dict(test_cfg=cfg.model.get('test_cfg') or {})))
    for path, value in (limits | dict(_entries(row.changes))).items():
        needed = data.most if 'rpn' in path else 2 * data.most
        if path[0] == 'test_cfg' and path[-1] == 'max_per_img' and value < needed:
            _set(changes, path, needed)
    place, published = weights_of(cfg)
    if loader:  # which normalises
        _set(changes, (*place[:-1], 'in_channels'), loader['channels'])
        for name, value in dict(mean=None, std=None, bgr_to_rgb=False).items():
            _set(changes, ('data_preprocessor', name), value)
    weights = None if own else _weights(options.weights, published)
    if weights != published:
        # Over weights of another type; MMEngine takes the key for an option where there are none.
        replaces = {'_delete_': True} if published else {}
        _set(changes, place, weights and {**replaces, **weights})
    if options.lora or options.frozen:
        if not weights and not own:
            way = '--frozen' if options.frozen else '--lora'
            raise ValueError(
                f'{way} keeps the weights of the backbone, which are random here: give --weights FILE'
            )
        _keep_backbone(cfg, place[:-1], options, changes)
    return changes


def _keep_backbone(
    cfg: Config, place: tuple[str, ...], options: FitOptions, changes: dict[str, Any]
) -> None:
    """Freeze the network at ``place`` of the model, or let it learn low-rank updates."""
    if options.lora:
        _set(changes, (*place, 'lora'), dict(rank=options.lora))
        return
    part = cfg.model.backbone.get('vit', cfg.model.backbone)
    _set(changes, (*place, 'frozen_stages'), MODELS.build(part).num_units)
    if not options.views:
        return
    if place != ('backbone',):
        raise ValueError(
            f'--views caches features of a backbone that is frozen as a whole; in {cfg.model.backbone.type}, '
            'modules around the ViT are trained: use another --model'
        )


def _trained_images(data: OwnData, options: FitOptions) -> int:
    return (data.train.count - data.train.empty) * (options.views or 1)


def _padding(data: OwnData, size: int, options: FitOptions) -> list[dict] | None:
    """Boxes: views whose features are cached have one size, that of the largest."""
    if not options.views:
        return None
    side = math.ceil(_BOX_SCALES[options.augment] * size)
    with_masks = data.task == 'instance'
    return [dict(type='BatchFixedSizePad', size=(side, side), pad_mask=with_masks)]


def _weights(text: str, published: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    if text == 'default' or text == 'none':
        return published if text == 'default' else None
    source, colon, file = text.partition(':')
    if not colon:
        source, file = published['source'] if published is not None else 'mmlape', text
    if not file or not (file.endswith(_ENDS_IN_WEIGHTS) or Path(file).exists()):
        raise ValueError(
            f'--weights {text!r}: use default, none, a file of weights, a work dir, or SOURCE:FILE with a source of '
            'docs/weights.md'
        )
    # In full, as the other paths: trainings begin in any folder.
    file = os.path.abspath(file) if Path(file).exists() else file
    return dict(type='mmlape.Pretrained', source=source, checkpoint=file)


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


def _entries(config: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All entries of nested dicts with their paths."""
    for key, value in config.items():
        yield (*path, key), value
        if isinstance(value, Mapping):
            yield from _entries(value, (*path, key))


def _set(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


def _head(parts: dict[str, Any]) -> str:
    # No name of a folder or class stands outside of a string literal: three quotes would end the docstring.
    data, options, out = parts['data'], parts['options'], parts['out']
    return f'''"""{parts['good_for']}, on {data.format} data: written by `mmlape fit`, for you to change.

`mmlape train` with this file trains it again, and `mmlape predict` with its work_dir answers.
"""

_base_ = {parts['base']!r}

classes = {value_text(data.classes)}
size, batch, epochs, lr = {parts['size']}, {options.batch}, {_epochs(options)}, {parts['lr']}
data_root = {data_root(data)!r}
work_dir = {os.path.abspath(out + '/training')!r}
randomness = dict(seed={options.seed})
model = {parts['model']}
load_image = {value_text(parts['loader'])}
{parts['load_from']}'''


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
    filter_cfg=dict(filter_empty_gt=True, min_size=1),
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
