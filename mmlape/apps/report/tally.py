"""Right and wrong in a validation: the confusion matrix, and the best and worst images."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torchvision.ops import box_iou

from mmlape.apps.inference.results import MaskCrop

IOU = 0.5  # least IoU of a box and a true one for a match
SCORE = 0.3  # least score of a box that counts


@dataclass(order=True)
class Example:
    """An image with its truth and its prediction, in order of ``score``.

    Attributes:
        score: Of detectors F1 of the boxes at IoU 0.5, of segmentors the mean IoU of the classes in the image.
        path: The image file; '' where the pipeline keeps no ``img_path``: then it is not shown.
        truth, found: ``boxes`` ``(N, 4)``, ``labels`` ``(N,)``, of a prediction also ``scores`` and ``crops``; or
            ``label_map`` ``(H, W)``.
    """

    score: float
    path: str
    truth: dict[str, Any] = field(compare=False)
    found: dict[str, Any] = field(compare=False)


class Tally:
    """Counts over the images of a validation.

    Args:
        classes: How many there are.
        kept: How many of the best and of the worst images are remembered.
        boxes: It is a detector: the last row of ``confusion`` is for boxes where nothing is, its last column for
            objects that were missed.

    Attributes:
        confusion: ``(true, predicted)``, of boxes, pixels or images.
    """

    def __init__(self, classes: int, kept: int, boxes: bool) -> None:
        count = classes + boxes
        self.confusion = np.zeros((count, count), np.int64)
        self.classes, self.kept, self.boxes = classes, kept, boxes
        self.best: list[Example] = []
        self.worst: list[Example] = []

    def add(self, sample: Any, scale: np.ndarray | None = None) -> None:
        """Count an image's data sample, where it holds truth and prediction.

        Args:
            sample: Of MMDetection, MMSegmentation or MMPretrain.
            scale: What the true boxes ``(x, y, x, y)`` were multiplied by. Default None: they are those of the file.
        """
        if 'pred_instances' in sample and 'bboxes' in sample.get('gt_instances', ()):
            boxes = sample.gt_instances.bboxes
            if getattr(boxes, 'tensor', boxes).shape[-1] == 4:  # else they are rotated
                self._keep(self._instances(sample, scale))
        elif 'pred_sem_seg' in sample and 'gt_sem_seg' in sample:
            self._keep(self._label_maps(sample))
        elif 'pred_label' in sample and 'gt_label' in sample:
            labels = sample.gt_label, sample.pred_label
            if all(each.numel() == 1 for each in labels):  # an image may have several
                self.confusion[tuple(map(int, labels))] += 1

    def merge(self, others: Iterable[Tally]) -> Tally:
        """Add those of other processes, whose images are others."""
        for other in others:
            self.confusion += other.confusion
            self._rank([*self.best, *other.best, *self.worst, *other.worst])
        return self

    def _keep(self, example: Example | None) -> None:
        if example is not None and example.path:
            self._rank([*self.best, *self.worst, example])

    def _rank(self, examples: list[Example]) -> None:
        unique = list({each.path: each for each in examples}.values())
        self.best = heapq.nlargest(self.kept, unique)
        self.worst = heapq.nsmallest(self.kept, unique)

    def _instances(self, sample: Any, scale: np.ndarray | None) -> Example | None:
        true, found = (
            {name: sample.get(part)[name] for name in ('bboxes', 'labels')}
            for part in ('gt_instances', 'pred_instances')
        )
        truth = dict(boxes=_corners(true['bboxes']), labels=_array(true['labels']))
        if scale is not None:
            truth['boxes'] = truth['boxes'] / scale
        scores = _array(sample.pred_instances.scores)
        order = np.argsort(-scores, kind='stable')
        order = order[scores[order] >= SCORE]
        boxes, labels = _corners(found['bboxes'])[order], _array(found['labels'])[order]
        prediction: dict[str, Any] = dict(boxes=boxes, labels=labels, scores=scores[order])
        if 'masks' in sample.pred_instances:
            masks = _array(sample.pred_instances.masks)[order]
            prediction['crops'] = [MaskCrop.of(mask.astype(bool)) for mask in masks]
        partners = match(overlaps(truth['boxes'], boxes), truth['labels'], labels)
        nothing = self.classes
        for true_place, place in partners:
            self.confusion[truth['labels'][true_place], labels[place]] += 1
        for missed in set(range(len(truth['labels']))) - {pair[0] for pair in partners}:
            self.confusion[truth['labels'][missed], nothing] += 1
        for extra in set(range(len(labels))) - {pair[1] for pair in partners}:
            self.confusion[nothing, labels[extra]] += 1
        both = len(truth['labels']) + len(labels)
        if not both:
            return None
        right = sum(truth['labels'][a] == labels[b] for a, b in partners)
        return Example(2 * float(right) / both, sample.get('img_path', ''), truth, prediction)

    def _label_maps(self, sample: Any) -> Example | None:
        true, found = (_array(each.data)[0] for each in (sample.gt_sem_seg, sample.pred_sem_seg))
        if true.shape != found.shape:
            return None
        counts = confusion_of(true, found, self.classes)
        self.confusion += counts
        if not counts.any():
            return None
        score = mean_iou(counts.diagonal(), counts.sum(1), counts.sum(0))
        kind = np.uint8 if self.classes < 255 else np.int16
        maps = (dict(label_map=each.astype(kind)) for each in (true, found))
        return Example(score, sample.get('img_path', ''), *maps)


def confusion_of(true: np.ndarray, found: np.ndarray, classes: int) -> np.ndarray:
    """Pixels ``(classes, classes)`` of two label maps, true by found; other labels are left out."""
    known = (true < classes) & (found < classes)
    cells = true[known].astype(np.int64) * classes + found[known]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes)


def mean_iou(right: np.ndarray, true: np.ndarray, found: np.ndarray) -> float:
    """The mean IoU (0 to 1) of the classes that occur, by pixels of each class ``(classes,)``."""
    union = true + found - right
    return float((right[union > 0] / union[union > 0]).mean())


def match(overlap: np.ndarray, true: np.ndarray, found: np.ndarray) -> list[tuple[int, int]]:
    """Pairs of a true box and a found one, each in one pair at most; found ones come best first, and those of the right
    class before others.

    Args:
        overlap: IoU ``(true, found)``.
        true, found: Labels.
    """
    pairs, free = [], set(range(len(true)))
    left = list(range(len(found)))
    for same in (True, False):
        for place in list(left):
            near = [
                each for each in free
                if overlap[each, place] >= IOU and (true[each] == found[place] or not same)
            ]  # fmt: skip
            if near:
                partner = max(near, key=lambda each: overlap[each, place])
                pairs.append((partner, place))
                free.remove(partner)
                left.remove(place)
    return pairs


def overlaps(true: np.ndarray, found: np.ndarray) -> np.ndarray:
    """IoU ``(N, M)`` of boxes ``(N, 4)`` and ``(M, 4)``."""
    return box_iou(torch.from_numpy(true), torch.from_numpy(found)).numpy()


def _corners(boxes: Any) -> np.ndarray:
    """``(N, 4)`` float32 of boxes, which MMDetection wraps."""
    return _array(getattr(boxes, 'tensor', boxes)).reshape(-1, 4).astype(np.float32)


def _array(values: Any) -> np.ndarray:
    return values.cpu().numpy() if hasattr(values, 'cpu') else np.asarray(values)
