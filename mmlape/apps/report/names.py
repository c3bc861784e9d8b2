"""Metrics under the names that people use."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping

NO_METRICS = ('step', 'time', 'data_time')  # validations log these beside metrics
# `coco/bbox_mAP_50`, `lvis/segm_AP75`, `pascal_voc/AP50`
_AP = re.compile(r'\w+/(?:(bbox|segm)_)?m?AP_?(\d+|[sml])?')
_OF_CLASS = re.compile(r'\w+/(.+)_precision')  # MMDetection's name for the AP of a class
_WHAT = {'bbox': 'box ', 'segm': 'mask ', None: ''}
_SIZES = dict(s=' of small objects', m=' of medium objects', l=' of large objects')
_NAMES = {
    'aAcc': 'pixel accuracy', 'mAcc': 'mean class accuracy', 'mDice': 'mean Dice', 'mFscore': 'mean F1',
    'mPrecision': 'mean precision', 'mRecall': 'mean recall', 'coco_panoptic/PQ': 'PQ',
    'coco_panoptic/PQ_th': 'PQ of things', 'coco_panoptic/PQ_st': 'PQ of stuff',
    'boxes/F1': 'F1 of boxes', 'boxes/precision': 'precision of boxes', 'boxes/recall': 'recall of boxes',
    'boxes/score': 'minimum score of these', 'accuracy/top1': 'top-1 accuracy', 'accuracy/top5': 'top-5 accuracy',
}  # fmt: skip


def for_people(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of a validation by the names that people use, those of single classes last, without steps, times and
    those that had nothing to measure (-1, NaN)."""
    names = names_of(metrics)
    return {
        names[name]: value
        for name, value in sorted(
            metrics.items(), key=lambda item: bool(_OF_CLASS.fullmatch(item[0]))
        )
        if name not in NO_METRICS and value != -1 and not math.isnan(value)
    }


def names_of(metrics: Iterable[str]) -> dict[str, str]:
    """The name for people of each metric of a validation, in the order of its log; its own where two would be alike."""
    metrics = list(metrics)
    aps = [found[1] for found in map(_AP.fullmatch, metrics) if found]
    # MMDetection evaluates boxes, then masks, whose AP of a class replaces that of the boxes.
    last = _WHAT[aps[-1]] if aps else ''
    found = {name: _name(name, last) for name in metrics}
    times = Counter(found.values())
    return {name: new if times[new] == 1 else name for name, new in found.items()}


def _name(metric: str, of_class: str) -> str:
    if found := _AP.fullmatch(metric):
        return f'{_WHAT[found[1]]}AP{_SIZES.get(found[2] or "", found[2] or "")}'
    if found := _OF_CLASS.fullmatch(metric):
        return f'{of_class}AP of {found[1]}'
    return _NAMES.get(metric, metric)
