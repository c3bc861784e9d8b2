"""Right and wrong in a validation: the confusion matrix, and the best and worst images."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from pycocotools import mask as coco_mask

from mmlape.apps.inference.results import MaskCrop
from mmlape.apps.inference.samples import as_array, corners
from mmlape.apps.inference.score import SCORE

from .rates import ScoreCounts

IOU = 0.5  # least IoU of a box and a true one for a match


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
        score: Least score of a box in ``confusion`` and in the images. Default 0.3.

    Attributes:
        confusion: ``(true, predicted)``, of boxes, pixels or images.
        counts: Boxes by their score.
        images, total: ``(classes,)``, images in which a class occurs; all that have labels.
    """

    def __init__(self, classes: int, kept: int, boxes: bool, score: float = SCORE) -> None:
        count = classes + boxes
        self.confusion = np.zeros((count, count), np.int64)
        self.classes, self.kept, self.boxes, self.score = classes, kept, boxes, score
        self.counts = ScoreCounts(classes if boxes else 0)
        self.images, self.total = np.zeros(classes, np.int64), 0
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
            self.counts.merge(other.counts)
            self.images += other.images
            self.total += other.total
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
        truth = dict(boxes=corners(true['bboxes']), labels=as_array(true['labels']))
        if scale is not None:
            truth['boxes'] = truth['boxes'] / scale
        scores = as_array(sample.pred_instances.scores)
        order = np.argsort(-scores, kind='stable')
        scores, labels = scores[order], as_array(found['labels'])[order]
        boxes, true_labels = corners(found['bboxes'])[order], truth['labels']
        overlap = overlaps(truth['boxes'], boxes)
        partners = match(overlap * (true_labels[:, None] == labels))
        counted = (partners >= 0) | ~_in_ignored(sample, scale, boxes, labels)
        order, scores, labels, boxes, partners = (
            each[counted] for each in (order, scores, labels, boxes, partners)
        )
        overlap = overlap[:, counted]
        self.counts.add(true_labels, labels, scores, partners >= 0)
        self.images[np.unique(true_labels)] += 1
        self.total += 1
        # Of the best ones, partners are the same without the others.
        count = int((scores >= self.score).sum())
        prediction: dict[str, Any] = dict(
            boxes=boxes[:count], labels=labels[:count], scores=scores[:count]
        )
        if 'masks' in sample.pred_instances:
            masks = as_array(sample.pred_instances.masks[order[:count]])
            prediction['crops'] = [MaskCrop.of(mask.astype(bool)) for mask in masks]
        right = int((partners[:count] >= 0).sum())
        self._confuse(true_labels, labels[:count], partners[:count], overlap[:, :count])
        both = len(true_labels) + count
        if not both:
            return None
        return Example(2 * right / both, sample.get('img_path', ''), truth, prediction)

    def _confuse(
        self, true: np.ndarray, found: np.ndarray, partners: np.ndarray, overlap: np.ndarray
    ) -> None:
        """Count labels in the confusion matrix; boxes without a partner of their class get one of another."""
        free, rest = np.setdiff1d(np.arange(len(true)), partners), np.flatnonzero(partners < 0)
        others = match(overlap[np.ix_(free, rest)])
        partners = partners.copy()
        partners[rest[others >= 0]] = free[others[others >= 0]]
        known, nothing = partners >= 0, self.classes
        missed = np.setdiff1d(np.arange(len(true)), partners)
        np.add.at(self.confusion, (true[partners[known]], found[known]), 1)
        np.add.at(self.confusion[:, nothing], true[missed], 1)
        np.add.at(self.confusion[nothing], found[~known], 1)

    def _label_maps(self, sample: Any) -> Example | None:
        true, found = (as_array(each.data)[0] for each in (sample.gt_sem_seg, sample.pred_sem_seg))
        if true.shape != found.shape:
            return None
        counts = confusion_of(true, found, self.classes)
        self.confusion += counts
        self.images += counts.any(axis=1)
        self.total += 1
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


def match(overlap: np.ndarray) -> np.ndarray:
    """The true box of each found one, best first, -1 for none: the nearest that is left, at an IoU of at least ``IOU``.

    Args:
        overlap: IoU ``(true, found)``, 0 for pairs that must not match.
    """
    left = np.where(overlap >= IOU, overlap, 0)
    partners = np.full(overlap.shape[1], -1)
    for place in np.flatnonzero(left.any(axis=0)):
        nearest = left[:, place].argmax()
        if left[nearest, place]:
            partners[place] = nearest
            left[nearest] = 0
    return partners


def _in_ignored(
    sample: Any, scale: np.ndarray | None, boxes: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Whether each found box lies, by half or more, in a crowd or another ignored object of its class: then it is not
    wrong, as in COCO's evaluation."""
    ignored = sample.get('ignored_instances')
    if ignored is None or 'bboxes' not in ignored:
        return np.zeros(len(boxes), bool)
    crowds = corners(ignored.bboxes)
    if scale is not None:
        crowds = crowds / scale
    inside = overlaps(crowds, boxes, crowds=True)
    return ((inside >= IOU) & (as_array(ignored.labels)[:, None] == labels)).any(axis=0)


def overlaps(true: np.ndarray, found: np.ndarray, crowds: bool = False) -> np.ndarray:
    """IoU ``(N, M)`` of boxes ``(N, 4)`` and ``(M, 4)``; of ``crowds``, the share of each found box inside."""
    if not (len(true) and len(found)):
        return np.zeros((len(true), len(found)))
    sides = [
        np.hstack([each[:, :2], each[:, 2:] - each[:, :2]]).astype(float) for each in (found, true)
    ]
    return coco_mask.iou(*sides, [crowds] * len(true)).T
