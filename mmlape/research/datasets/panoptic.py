"""Panoptic segmentation in COCO's format for MMDetection, without the package panopticapi.

A panoptic PNG holds the id of every pixel's segment, R + 256 G + 65536 B; 0 is void. A JSON file names the segments of
each image and their categories.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import mmcv
import numpy as np
from mmdet.datasets.transforms import LoadAnnotations, LoadPanopticAnnotations
from mmdet.evaluation.functional import INSTANCE_OFFSET
from mmengine.evaluator import BaseMetric
from mmengine.fileio import get

from mmlape.checks import check_options
from mmlape.registry import METRICS, TRANSFORMS

VOID = 0
UNKNOWN = -1  # the label of void and of whatever else has no class


def rgb_to_ids(pixels: np.ndarray) -> np.ndarray:
    """Segment ids ``(H, W)`` int32 of a panoptic PNG's pixels ``(H, W, 3)`` uint8, RGB."""
    return pixels.astype(np.int32) @ np.array([1, 256, 65536], dtype=np.int32)


@TRANSFORMS.register_module()
class LoadPanopticMap(LoadPanopticAnnotations):
    """MMDetection's ``LoadPanopticAnnotations`` (same options and results) without panopticapi.

    Adds boxes, labels and masks of things, and ``gt_seg_map`` ``(H, W)``, the label of each pixel or 255.
    """

    def __init__(
        self,
        with_bbox: bool = True,
        with_label: bool = True,
        with_mask: bool = True,
        with_seg: bool = True,
        **options: Any,
    ) -> None:
        options |= dict(with_bbox=with_bbox, with_label=with_label)
        options |= dict(with_mask=with_mask, with_seg=with_seg)
        check_options(LoadPanopticMap, options)
        # Upstream's own constructor only adds the import of panopticapi.
        LoadAnnotations.__init__(self, **options)
        self.rgb2id = rgb_to_ids


@METRICS.register_module()
class PanopticQuality(BaseMetric):
    """Panoptic quality (Kirillov et al., CVPR 2019) as MMDetection's ``CocoPanopticMetric``, without panopticapi.

    A predicted segment and one of the truth match if they have the same class and an IoU above 0.5. A class has
    ``PQ = sum of IoUs / (TP + FP / 2 + FN / 2) = SQ * RQ``. Void pixels do not count as part of a prediction; crowds
    need not be found, and predictions of which more than half is void or a crowd of their class are not errors. Results
    are means over the classes that occur, in %: ``PQ``, ``SQ``, ``RQ``, and with ``_th`` of things, ``_st`` of stuff.

    Args:
        ann_file: COCO's panoptic JSON file of the images.
        seg_prefix: The folder of their PNGs.
        backend_args: Of MMEngine's file reading.
        options: Of ``BaseMetric`` (``prefix``, ``collect_device``).

    Raises:
        ValueError: If an image or a class is not in the file, or a prediction has not the size of its truth.
    """

    default_prefix = 'coco_panoptic'

    def __init__(
        self,
        ann_file: str,
        seg_prefix: str,
        backend_args: dict | None = None,
        **options: Any,
    ) -> None:
        own = dict(ann_file=ann_file, seg_prefix=seg_prefix, backend_args=backend_args)
        check_options(PanopticQuality, own)
        super().__init__(**options)
        self.seg_prefix, self.backend_args = seg_prefix, backend_args
        content = json.loads(get(ann_file, backend_args=backend_args))
        self.categories = {entry['name']: entry for entry in content['categories']}
        self.annotations = {entry['image_id']: entry for entry in content['annotations']}

    def _label_of(self) -> dict[int, int]:
        """Labels by ids of categories."""
        classes = (self.dataset_meta or {}).get('classes', ())
        if not classes or not set(classes) <= set(self.categories):
            raise ValueError(
                f"the data set's classes {classes!r} must be categories of ann_file: {list(self.categories)}"
            )
        return {self.categories[name]['id']: label for label, name in enumerate(classes)}

    def process(self, data_batch: Any, data_samples: Sequence[dict]) -> None:
        """Count errors of ``pred_panoptic_seg.sem_seg``, ``(1, H, W)`` of the image's original size."""
        label_of = self._label_of()
        for sample in data_samples:
            entry = self.annotations.get(sample['img_id'])
            if entry is None:
                raise ValueError(f'ann_file has no image of id {sample["img_id"]!r}')
            content = get(
                os.path.join(self.seg_prefix, entry['file_name']), backend_args=self.backend_args
            )
            truth = rgb_to_ids(mmcv.imfrombytes(content, flag='color', channel_order='rgb'))
            predicted = sample['pred_panoptic_seg']['sem_seg'][0].cpu().numpy()
            if predicted.shape != truth.shape:
                raise ValueError(
                    f'{entry["file_name"]} has the size {truth.shape}, its prediction {predicted.shape}'
                )
            segments = {
                each['id']: (label_of.get(each['category_id'], UNKNOWN), bool(each.get('iscrowd')))
                for each in entry['segments_info']
            }
            self.results.append(count_matches(truth, segments, predicted, len(label_of)))

    def compute_metrics(self, results: list) -> dict[str, float]:
        """``PQ``, ``SQ``, ``RQ`` in %; those of no class at all are NaN."""
        iou, matched, spurious, missed = np.sum(results, axis=0).T
        total = matched + spurious / 2 + missed / 2  # at least 0.5 for a class that occurs
        recognition = matched / np.maximum(total, 0.5)
        quality = np.stack(
            [iou / np.maximum(total, 0.5), iou / np.maximum(matched, 1), recognition]
        )
        classes = (self.dataset_meta or {})['classes']
        things = np.array([bool(self.categories[name]['isthing']) for name in classes])
        found: dict[str, float] = {}
        for suffix, chosen in (('', things | True), ('_th', things), ('_st', ~things)):
            occurring = quality[:, chosen & (total > 0)]
            means = occurring.mean(axis=1) if occurring.size else np.full(3, np.nan)
            found |= {
                name + suffix: 100 * float(mean)
                for name, mean in zip(('PQ', 'SQ', 'RQ'), means, strict=True)
            }
        return found


def count_matches(
    truth: np.ndarray,
    segments: dict[int, tuple[int, bool]],
    predicted: np.ndarray,
    num_classes: int,
) -> np.ndarray:
    """The sum of IoUs, true positives, false positives and false negatives of each class, ``(num_classes, 4)``.

    Args:
        truth: Ids of segments, ``(H, W)``.
        segments: The label of each id, and whether it is a crowd.
        predicted: ``label + 1000 * instance``, ``(H, W)``; labels from ``num_classes`` are void.
        num_classes: Number of classes.
    """
    ids, rows = np.unique(truth, return_inverse=True)
    values, columns = np.unique(predicted, return_inverse=True)
    shape = len(ids), len(values)
    flat = rows.ravel() * shape[1] + columns.ravel()
    overlap = np.bincount(flat, minlength=shape[0] * shape[1]).reshape(shape)
    known = [segments.get(int(each), (UNKNOWN, False)) for each in ids]
    labels, crowd = np.array([k[0] for k in known]), np.array([k[1] for k in known])
    guessed = values % INSTANCE_OFFSET
    areas, void = overlap.sum(axis=0), overlap[ids == VOID].sum(axis=0)
    same = labels[:, None] == guessed
    union = overlap.sum(axis=1, keepdims=True) + areas - overlap - void
    iou = overlap / np.maximum(union, 1)
    match = same & ~crowd[:, None] & (iou > 0.5)
    ignored = void + (overlap * (same & crowd[:, None])).sum(axis=0)
    missed = (labels >= 0) & ~crowd & ~match.any(axis=1)
    spurious = (guessed < num_classes) & ~match.any(axis=0) & (2 * ignored <= areas)
    stats = np.zeros((num_classes, 4))
    row, column = match.nonzero()
    stats[:, 0] = np.bincount(labels[row], weights=iou[row, column], minlength=num_classes)
    stats[:, 1] = np.bincount(labels[row], minlength=num_classes)
    stats[:, 2] = np.bincount(guessed[spurious], minlength=num_classes)
    stats[:, 3] = np.bincount(labels[missed], minlength=num_classes)
    return stats
