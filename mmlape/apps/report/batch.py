"""A picture of the training data as the network sees them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from mmengine.config import Config
from mmengine.registry import DATASETS

from mmlape.apps.inference.results import MaskCrop, Result
from mmlape.atomic import atomic_write
from mmlape.checks import type_name
from mmlape.pixels import picture_of
from mmlape.training.cached_features import random_state
from mmlape.training.check_data import datasets_of
from mmlape.training.data_audit import evenly_spaced

BATCH = 'training_batch.jpg'
_IMAGES, _COLUMNS = 6, 2
_SIDE, _GAP = 560, 8  # pixels of an image's longer side, and between images


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
    plain = not any(
        type_name(step) == 'LoadImage'
        for config in datasets_of(cfg, 'train')
        for step in config.get('pipeline', ())
    )
    seen = _with_own_transforms(dataset)
    with random_state(0):
        items = [seen[index] for index in evenly_spaced(range(len(seen)), _IMAGES)]
    meta = dataset.metainfo
    palette = None if isinstance(meta.get('palette'), str) else meta.get('palette')
    pictures = [_result(item, meta['classes'], palette, plain).picture() for item in items]
    encoded = cv2.imencode('.jpg', _in_a_grid(pictures))[1]
    atomic_write(path, encoded.tobytes())
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
    """The truth of an item of a data set, in the size in which it is drawn."""
    pixels, sample = item['inputs'].numpy().transpose(1, 2, 0), item['data_samples']
    if plain and pixels.shape[2] == 3:
        image = pixels.clip(0, 255).astype(np.uint8)
    else:
        image = picture_of(pixels)
    scale = _SIDE / max(image.shape[:2])
    height, width = (max(1, round(scale * side)) for side in image.shape[:2])
    how = cv2.INTER_AREA if scale < 1 else cv2.INTER_NEAREST
    truth = Result(
        cv2.resize(image, (width, height), interpolation=how), '', classes, palette=palette
    )
    if 'gt_instances' in sample:
        instances = sample.gt_instances
        boxes = getattr(instances.bboxes, 'tensor', instances.bboxes)
        truth.boxes, truth.labels = scale * boxes.numpy(), instances.labels.numpy()
        if 'masks' in instances:
            masks = instances.masks.resize((height, width)).to_ndarray()
            truth.crops = [MaskCrop.of(mask.astype(bool)) for mask in masks]
    else:
        labels = sample.gt_sem_seg.data[0].numpy().astype(np.int16)
        truth.label_map = cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST)
    return truth


def _in_a_grid(pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Pictures of different sizes in rows, on white."""
    width = max(each.shape[1] for each in pictures) + _GAP
    rows = []
    for first in range(0, len(pictures), _COLUMNS):
        some = pictures[first : first + _COLUMNS]
        row = np.full((max(map(len, some)) + _GAP, _COLUMNS * width, 3), 255, np.uint8)
        for number, each in enumerate(some):
            row[: len(each), number * width : number * width + each.shape[1]] = each
        rows.append(row)
    return np.vstack(rows)[:-_GAP, :-_GAP]
