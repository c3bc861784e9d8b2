"""How good a trained model is on real images: measures, also on fixed random samples of the images."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from mmlape.apps.fit import OwnData, Part, truths
from mmlape.apps.inference.model import Model
from mmlape.apps.inference.results import Result
from mmlape.apps.report.tally import confusion_of, mean_iou
from mmlape.research.robustness.corruptions import corrupt, image_seed

from .kinds import KINDS, shown_as

SAMPLES = 400
SEVERITY = 3  # severity of corruptions
CORRUPTED_EVERY = 3
_IOUS = np.arange(0.5, 1, 0.05)
_SCORE = 0.5  # least score of masks for the Data Science Bowl's metric
_MOST = 1000  # detections per image


def samples_of(images: int) -> np.ndarray:
    """Random samples of images with replacement, ``(SAMPLES, images)``, the same in all runs."""
    return np.random.default_rng(0).integers(images, size=(SAMPLES, images))


def score(model: Model, data: OwnData, part: Part, view: str | None = None) -> dict[str, Any]:
    """All measures of a model, in percent.

    Args:
        view: One of :data:`KINDS`; or a corruption of ImageNet-C, which every :data:`CORRUPTED_EVERY`-th image gets at
            severity :data:`SEVERITY`, and the others are left out. Default None: all images as they are.

    Returns:
        ``images``, their number; ``metrics``, by name; ``sampled``, the primary measures on each of
        :func:`samples_of`, by name; ``parameters``.
    """
    seen = list(_seen(model, data, part, view))
    if not seen:
        raise ValueError(f'{part.images} has no image for the view {view!r}')
    samples = samples_of(len(seen))
    if not model.finds_boxes:
        metrics, sampled = _label_maps(seen, samples)
    else:
        metrics, sampled = _boxes(seen, part, samples)
    rounded = {name: round(100 * value, 3) for name, value in metrics.items()}
    lists = {name: np.round(100 * values, 3).tolist() for name, values in sampled.items()}
    parameters = sum(parameter.numel() for parameter in model.model.parameters())
    return dict(images=len(seen), metrics=rounded, sampled=lists, parameters=parameters)


def _seen(
    model: Model, data: OwnData, part: Part, view: str | None
) -> Iterator[tuple[Result, Result]]:
    """Truth and prediction of each image."""
    every = 1 if view is None or view in KINDS else CORRUPTED_EVERY
    for number, truth in enumerate(islice(truths(model, data, part), 0, None, every)):
        image: np.ndarray | None = truth.image
        if view is None:
            pass
        elif view in KINDS:
            image = shown_as(view, truth.image)
        else:
            seed = image_seed(0, view, SEVERITY, number)
            rgb = corrupt(np.ascontiguousarray(truth.image[..., ::-1]), view, SEVERITY, seed)
            image = np.ascontiguousarray(rgb[..., ::-1])
        if image is not None:
            (found,) = model.predict(image, score=0.0)
            yield truth, found


def _label_maps(seen: list[tuple[Result, Result]], samples: np.ndarray) -> tuple[dict, dict]:
    classes = len(seen[0][0].classes)
    counts = np.zeros((len(seen), classes, classes), np.int64)  # truth by prediction
    for table, (truth, found) in zip(counts, seen):
        table[:] = confusion_of(np.asarray(truth.label_map), np.asarray(found.label_map), classes)

    def iou_of(table: np.ndarray) -> float:
        return mean_iou(table.diagonal(), table.sum(1), table.sum(0))

    right = np.trace(counts.sum(0)) / counts.sum()
    metrics = {'mIoU': iou_of(counts.sum(0)), 'pixel accuracy': float(right)}
    return metrics, {'mIoU': np.array([iou_of(counts[each].sum(0)) for each in samples])}


def _boxes(seen: list[tuple[Result, Result]], part: Part, samples: np.ndarray) -> tuple[dict, dict]:
    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO(part.ann_file)
    ids = {image['file_name']: image['id'] for image in truth.dataset['images']}
    order = [ids[image.name] for image, _ in seen]
    labels = {name: truth.getCatIds([name])[0] for name in seen[0][0].classes}
    found = [
        entry
        for number, (_, result) in zip(order, seen)
        for entry in _coco_entries(result, number, labels)
    ]
    metrics: dict[str, Any] = {}
    sampled = {}
    # An image without objects has no masks.
    with_masks = any(truth.crops is not None for truth, _ in seen)
    kinds = {'box': 'bbox'} | ({'mask': 'segm'} if with_masks else {})
    for kind, name in kinds.items():
        of, again = _average_precision(truth, found, order, name)
        metrics |= {f'{kind} {key}': value for key, value in of.items()}
        sampled[f'{kind} AP'] = np.array([again(sample) for sample in samples])
    if 'mask' in kinds:
        bowl = np.array([_bowl(*pair) for pair in seen])
        metrics |= {'DSB AP': float(bowl.mean()), 'DSB AP50': float(bowl[:, 0].mean())}
        sampled['DSB AP'] = bowl.mean(1)[samples].mean(1)
    return metrics, sampled


def _coco_entries(result: Result, image: int, labels: dict[str, int]) -> Iterator[dict]:
    height, width = result.image.shape[:2]
    for index, (box, score, label) in enumerate(zip(result.boxes, result.scores, result.labels)):
        x1, y1, x2, y2 = map(float, box)
        entry: dict[str, Any] = dict(
            image_id=image, category_id=labels[result.classes[label]], score=float(score)
        )
        entry['bbox'] = [x1, y1, x2 - x1, y2 - y1]
        if result.crops is not None:
            entry['segmentation'] = result.crops[index].in_image(height, width)
        yield entry


def _average_precision(
    truth: COCO, found: list[dict], order: list[int], kind: str
) -> tuple[dict[str, float], Callable[[np.ndarray], float]]:
    """COCO's AP, AP50 and AP75, and a function that gives the AP of a sample of the images."""
    if not found:
        return dict(AP=0.0, AP50=0.0, AP75=0.0), lambda sample: 0.0
    with contextlib.redirect_stdout(io.StringIO()):
        # Boxes take their own area, not that of the mask in the same entry.
        plain = [
            {k: v for k, v in e.items() if k != 'segmentation' or kind == 'segm'} for e in found
        ]
        evaluation = COCOeval(truth, truth.loadRes(plain), kind)
        parameters = evaluation.params
        parameters.maxDets, parameters.imgIds = [_MOST], sorted(order)
        parameters.areaRng, parameters.areaRngLbl = parameters.areaRng[:1], ['all']
        evaluation.evaluate()
    place = {number: index for index, number in enumerate(evaluation.params.imgIds)}
    sorted_places = np.array([place[number] for number in order])
    every = np.array(evaluation.evalImgs, dtype=object).reshape(-1, len(order))

    def precision(some: np.ndarray) -> np.ndarray:
        evaluation.evalImgs = every[:, sorted_places[some]].ravel().tolist()
        with contextlib.redirect_stdout(io.StringIO()):
            evaluation.accumulate()
        table = evaluation.eval['precision'][..., 0, 0]  # (thresholds, recalls, classes)
        return np.array([row[row > -1].mean() if (row > -1).any() else 0.0 for row in table])

    whole = precision(np.arange(len(order)))
    figures = dict(AP=float(whole.mean()), AP50=float(whole[0]), AP75=float(whole[5]))
    return figures, lambda sample: float(precision(sample).mean())


def _bowl(truth: Result, found: Result) -> np.ndarray:
    """TP / (TP + FP + FN) of one image at each of :data:`_IOUS` (Data Science Bowl 2018), by masks without overlap."""
    there, numbers = _painted(truth, np.ones(len(truth), bool))
    seen, others = _painted(found, found.scores >= _SCORE)
    if not numbers or not others:
        return np.full(len(_IOUS), float(numbers == others))
    pairs = (others + 1) * there.astype(np.int64) + seen
    table = np.bincount(pairs.ravel(), minlength=(numbers + 1) * (others + 1))
    table = table.reshape(numbers + 1, others + 1)
    sizes = table.sum(1)[1:, None] + table.sum(0)[None, 1:] - table[1:, 1:]
    # Masks do not overlap, so above 0.5 each has at most one partner.
    hits = (table[1:, 1:] / np.maximum(sizes, 1) > _IOUS[:, None, None]).sum((1, 2))
    return hits / (numbers + others - hits)


def _painted(result: Result, wanted: np.ndarray) -> tuple[np.ndarray, int]:
    """A map ``(H, W)`` of numbered masks, the best on top, and how many can be seen."""
    crops, canvas = result.crops or [], np.zeros(result.image.shape[:2], np.int32)
    for index in np.flatnonzero(wanted)[::-1]:
        crop = crops[index]
        mask = crop.array()
        rows, columns = mask.shape
        canvas[crop.top : crop.top + rows, crop.left : crop.left + columns][mask] = index + 1
    numbers, places = np.unique(np.append(0, canvas), return_inverse=True)
    return places[1:].reshape(result.image.shape[:2]), len(numbers) - 1


def part_named(data: OwnData, name: str, root: Path) -> Part:
    """The part of the data set in ``root`` that lies beside its validation part, in the same layout.

    Raises:
        ValueError: If it is not there.
    """
    if name == 'val':
        return data.val
    renamed = {}
    for key in ('images', 'ann_file', 'label_maps'):
        path = Path(getattr(data.val, key))
        pieces = path.relative_to(root).parts if path.is_relative_to(root) else ()
        new = [one.replace('val', name) if one.startswith('val') else one for one in pieces]
        renamed[key] = str(root.joinpath(*new)) if pieces else getattr(data.val, key)
    missing = [path for path in renamed.values() if path and not Path(path).exists()]
    if missing:
        raise ValueError(f'--part {name}: {missing[0]} does not exist')
    return Part(count=0, **renamed)
