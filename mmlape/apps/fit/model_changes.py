"""Changes of a shipped model for one's own classes, image size, weights and channels."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmengine.config import Config

from mmlape.checkpoints import Pretrained
from mmlape.registry import MODELS

from .data import OwnData
from .models import FitModel
from .options import FitOptions

_ENDS_IN_WEIGHTS = ('.pth', '.pt', '.bin', '.safetensors')
_BOX_SCALES = {'none': 1.0, 'light': 1.25, 'strong': 1.5}  # the largest


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


def model_changes(
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
    _raise_limits(changes, cfg, data, row)
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


def _raise_limits(changes: dict[str, Any], cfg: Config, data: OwnData, row: FitModel) -> None:
    """Images with more objects than ``max_per_img`` would lose some; more proposals than needed cost AP."""
    limits = dict(_entries(dict(test_cfg=cfg.model.get('test_cfg') or {})))
    for path, value in (limits | dict(_entries(row.changes))).items():
        needed = data.most if 'rpn' in path else 2 * data.most
        if path[0] == 'test_cfg' and path[-1] == 'max_per_img' and value < needed:
            _set(changes, path, needed)


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
            '`mmlape docs weights`'
        )
    # In full, as the other paths: trainings begin in any folder.
    file = os.path.abspath(file) if Path(file).exists() else file
    return dict(type='mmlape.Pretrained', source=source, checkpoint=file)


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
