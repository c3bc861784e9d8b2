"""A picture of the training data as the network sees them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmlape.apps.inference.drawing import side_by_side
from mmlape.apps.inference.results import Result, write_picture
from mmlape.apps.inference.samples import instances_of
from mmlape.checks import type_name
from mmlape.pixels import picture_of
from mmlape.training.cached_features import random_state
from mmlape.training.check_data import pipeline_steps
from mmlape.training.data_audit import evenly_spaced

BATCH = 'training_batch.jpg'
_IMAGES, _SIDE = 6, 560  # pixels of the longer side of each


def draw_batch(cfg: Config, path: Path, dataset: Any = None) -> Path:
    """Write a few training images of MMDetection or MMSegmentation, augmented, with their labels.

    A training is not changed by it: random numbers go on as before, and transforms, which may hold images, are copied.

    Args:
        cfg: The config.
        path: The picture.
        dataset: The training data. Default None: they are built.
    """
    if dataset is None:
        with DATASETS.switch_scope_and_registry(cfg.default_scope) as registry:
            dataset = registry.build(cfg.train_dataloader.dataset)
    # MMCV's loader gives BGR of 8 bits, ours channels in the order of the file, normalised.
    plain = not any(type_name(step) == 'LoadImage' for step in pipeline_steps(cfg, 'train'))
    seen = _with_own_transforms(dataset)
    with random_state(0):
        items = [seen[index] for index in evenly_spaced(range(len(seen)), _IMAGES)]
    meta = dataset.metainfo
    palette = None if isinstance(meta.get('palette'), str) else meta.get('palette')
    shown = [_result(item, meta['classes'], palette, plain) for item in items]
    write_picture(side_by_side(*shown, longest=_SIDE), path)
    return path


def _with_own_transforms(dataset: Any) -> Any:
    """A copy of a data set, or of several in wrappers, that shares the data alone."""
    copied = copy.copy(dataset)
    if hasattr(dataset, 'pipeline'):
        copied.pipeline = copy.deepcopy(dataset.pipeline)
    if hasattr(dataset, 'dataset'):
        copied.dataset = _with_own_transforms(dataset.dataset)
    if hasattr(dataset, 'datasets'):
        copied.datasets = [_with_own_transforms(each) for each in dataset.datasets]
    return copied


def _result(item: Any, classes: Sequence[str], palette: Any, plain: bool) -> Result:
    """The truth of an item of a data set."""
    pixels, sample = item['inputs'].numpy().transpose(1, 2, 0), item['data_samples']
    if plain and pixels.shape[2] == 3:
        image = np.ascontiguousarray(pixels.clip(0, 255).astype(np.uint8))
    else:
        image = picture_of(pixels)
    if 'gt_instances' in sample:
        truth = instances_of(sample.gt_instances)
    else:
        truth = dict(label_map=sample.gt_sem_seg.data[0].numpy().astype(np.int16))
    return Result(image, '', classes, palette=palette, **truth)
