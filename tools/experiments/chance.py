"""What can be reached without knowing where a square is: computed from the label maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from mmlape.datasets.digit_cells import KINDS


def pixel_counts(root: Path, split: str) -> np.ndarray:
    """How many pixels of a split of the digit cells carry each label."""
    paths = sorted((root / 'annotations' / split).glob('*.png'))
    counts = [np.bincount(np.asarray(Image.open(path)).ravel()) for path in paths]
    length = max(map(len, counts))
    return np.sum([np.pad(each, (0, length - len(each))) for each in counts], axis=0)


def position_blind(counts: np.ndarray) -> dict[str, dict[str, float]]:
    """Scores of three predictors that know nothing of a square's place; the last two find and name every digit.

    * ``background``: background everywhere.
    * ``one_kind``: for each digit, always the label that is most frequent.
    * ``even_guess``: for each digit, each of its four labels with probability 1/4; expected intersections and unions.
      Guessing kind k with probability p_k has, with kinds of equal frequency, the expected IoU p / (1 + 3 p), a concave
      function, so no other way of guessing has a higher mIoU.

    Args:
        counts: Pixels with each label of the validation images, background first, then four for each digit.

    Returns:
        For each predictor ``mIoU``, ``mAcc`` and ``aAcc`` (0 to 1).
    """
    kinds = counts[1:].reshape(-1, KINDS).astype(float)
    even = np.full_like(kinds, 1 / KINDS)
    one = (kinds == kinds.max(1, keepdims=True)).astype(float)
    return {
        'background': _scores(counts, np.zeros_like(kinds), counts.sum()),
        'one_kind': _scores(counts, one, counts[0]),
        'even_guess': _scores(counts, even, counts[0]),
    }


def _scores(counts: np.ndarray, guess: np.ndarray, background: float) -> dict[str, float]:
    """Scores where ``guess[digit, kind]`` of a digit's pixels get that kind and ``background`` pixels label 0."""
    kinds = counts[1:].reshape(-1, KINDS).astype(float)
    predicted = np.append(background, guess * kinds.sum(1, keepdims=True))
    intersection = np.append(counts[0], guess * kinds)
    iou = intersection / (counts + predicted - intersection)
    return {
        'mIoU': float(iou.mean()),
        'mAcc': float((intersection / counts).mean()),
        'aAcc': float(intersection.sum() / counts.sum()),
    }
