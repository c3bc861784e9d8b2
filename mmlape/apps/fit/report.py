"""Predictions of a model that ``mmlape fit`` has trained beside the ground truth."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from pycocotools.coco import COCO

from mmlape.apps.inference import MaskCrop, Model, Result, read_picture
from mmlape.apps.inference.drawing import side_by_side
from mmlape.apps.inference.reading import below, read_text, short_name
from mmlape.apps.inference.results import write_picture

from .data import OwnData, Part


def compare_with_truth(
    model: Model, data: OwnData, folder: Path, count: int = 8, score: float | None = None
) -> list[Path]:
    """Pictures of validation images (of training images where there are none): truth left, prediction right.

    Args:
        model: The trained model.
        data: Whose images.
        folder: Where the pictures go.
        count: How many, evenly spread. Default 8.
        score: Minimum score of a box. Default None: the model's own.
    """
    part = data.val or data.train
    step = max(1, part.count // count)
    written = []
    for truth in islice(truths(model, data, part), 0, step * count, step):
        file = Path(part.images, truth.name + data.img_suffix * (data.task == 'segment'))
        (found,) = model.predict(file, score=score)
        name = Path(truth.name).with_suffix('').as_posix().replace('/', '_')
        path = folder / f'{short_name(name)}.jpg'
        write_picture(side_by_side(truth, found), path)
        written.append(path)
    return written


def truths(model: Model, data: OwnData, part: Part) -> Iterator[Result]:
    """Ground truth of a part of the data, image by image, as a model's results are."""
    return _label_maps(model, data, part) if data.task == 'segment' else _boxes(model, data, part)


def _boxes(model: Model, data: OwnData, part: Part) -> Iterator[Result]:
    """Ground truth of a COCO file; image by image."""
    coco = COCO(part.ann_file)
    # The first of a name; pycocotools' getCatIds would go through all categories for each class.
    ids = {one['name']: one['id'] for one in reversed(coco.dataset['categories'])}
    labels = {ids[name]: index for index, name in enumerate(model.classes)}
    for entry in sorted(coco.dataset['images'], key=lambda image: image['file_name']):
        found = [
            box
            for box in coco.loadAnns(coco.getAnnIds(entry['id']))
            if box['category_id'] in labels and not box.get('iscrowd')
        ]
        image = read_picture(Path(part.images, entry['file_name']))
        truth = Result(image, entry['file_name'], model.classes, palette=model.palette)
        corners = np.array([box['bbox'] for box in found], np.float32).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        truth.boxes = corners
        truth.labels = np.array([labels[box['category_id']] for box in found], int)
        if found and data.task == 'instance':
            truth.crops = [MaskCrop.of(coco.annToMask(box).astype(bool)) for box in found]
        yield truth


def _label_maps(model: Model, data: OwnData, part: Part) -> Iterator[Result]:
    """Ground truth of label maps, image by image."""
    names = read_text(part.ann_file).split('\n') if part.ann_file else None
    if names is None:
        files = [str(file.relative_to(part.images)) for file in below(part.images)[0]]
        ends = data.img_suffix
        names = [name.removesuffix(ends) for name in files if name.endswith(ends)]
    for name in filter(None, map(str.strip, names)):
        image = read_picture(Path(part.images, name + data.img_suffix))
        labels: Any = mmcv.imread(
            str(Path(part.label_maps, name + data.map_suffix)), flag='unchanged', backend='pillow'
        )
        yield Result(image, name, model.classes, palette=model.palette, label_map=labels)
