"""Results from data samples of MMDetection and MMSegmentation: predictions and ground truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .results import MaskCrop

_OFFSET = 1000  # ids of panoptic maps are label + 1000 * number of the instance


def instances_of(instances: Any, score: float = 0.0) -> dict[str, Any]:
    """MMDetection's instances as options of a :class:`Result`: from a score on, best first; of ground truth, which has
    no scores, all."""
    found: dict[str, Any] = dict(boxes=corners(instances.bboxes), labels=as_array(instances.labels))
    order: Any = slice(None)
    if 'scores' in instances:
        found['scores'] = as_array(instances.scores)
        order = np.argsort(-found['scores'], kind='stable')
        order = order[found['scores'][order] >= score]
    found = {name: values[order] for name, values in found.items()}
    if 'masks' in instances:
        masks = instances.masks[order]
        masks = masks.to_ndarray() if hasattr(masks, 'to_ndarray') else as_array(masks)
        found['crops'] = [MaskCrop.of(mask.astype(bool)) for mask in masks]
    return found


def prediction_of(sample: Any, classes: Sequence[str], score: float) -> dict[str, Any]:
    """Predictions as options of a :class:`Result`: a label map, segments of a panoptic map, or boxes.

    Raises:
        ValueError: If the sample has none of them.
    """
    if 'pred_sem_seg' in sample:
        labels = as_array(sample.pred_sem_seg.data)[0]
        return dict(label_map=labels.astype(np.uint8 if len(classes) <= 256 else np.int16))
    if 'pred_panoptic_seg' in sample:
        return _segments(as_array(sample.pred_panoptic_seg.sem_seg)[0], len(classes))
    if 'pred_instances' in sample:
        return instances_of(sample.pred_instances, score)
    raise ValueError(
        f'there is nothing to draw in a sample of {", ".join(sample.keys()) or "nothing"}'
    )


def truth_of(sample: Any, scale: np.ndarray | None = None) -> dict[str, Any] | None:
    """Ground truth as options of a :class:`Result`, of the kind of the prediction; None where the sample has none of
    its image's size.

    Args:
        sample: The sample.
        scale: What ``(x, y)`` of the boxes were multiplied by. Default None: they are those of the file.
    """
    if 'pred_sem_seg' in sample or 'pred_panoptic_seg' in sample:
        labels = as_array(sample.gt_sem_seg.data)[0] if 'gt_sem_seg' in sample else np.empty(0)
        size = tuple(sample.get('ori_shape', ())[:2])
        return dict(label_map=labels) if labels.shape == size else None
    if 'gt_instances' not in sample or 'bboxes' not in sample.gt_instances:
        return None
    truth = instances_of(sample.gt_instances)
    if scale is not None:
        truth['boxes'] = truth['boxes'] / np.tile(scale, 2)
        truth.pop('crops', None)
    return truth


def truth_is_scaled(dataset: Any) -> bool:
    """Whether the pipeline of a data set resizes the annotations with the image."""
    steps = getattr(getattr(dataset, 'pipeline', None), 'transforms', [])
    names = [type(step).__name__ for step in steps]
    loaded = next((k for k, name in enumerate(names) if 'Annotations' in name), len(names))
    return any('Resize' in name for name in names[loaded:])


def corners(boxes: Any) -> np.ndarray:
    """``(N, 4)`` float32 of boxes, which MMDetection wraps."""
    return as_array(getattr(boxes, 'tensor', boxes)).reshape(-1, 4).astype(np.float32)


def as_array(values: Any) -> np.ndarray:
    """A NumPy array of a tensor or an array."""
    return values.cpu().numpy() if hasattr(values, 'cpu') else np.asarray(values)


def _segments(ids: np.ndarray, classes: int) -> dict[str, Any]:
    """A panoptic map: a label map of stuff, and a mask with its box for each thing."""
    labels = ids % _OFFSET
    things = [number for number in np.unique(ids[ids >= _OFFSET]) if number % _OFFSET < classes]
    crops = [MaskCrop.of(ids == number) for number in things]
    return dict(
        label_map=np.where(ids < _OFFSET, labels, classes),
        boxes=np.array([crop.box for crop in crops], np.float32).reshape(-1, 4),
        labels=np.array(things, int) % _OFFSET,
        crops=crops,
    )
