"""Scores of guesses without (or with half of) the position of a square, computed from the label maps."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from mmlape.apps.report.tally import mean_iou
from mmlape.research.datasets.digits import KINDS


def pixel_counts(root: Path, split: str) -> np.ndarray:
    """Pixels per label of a split of the digit cells."""
    paths = sorted((root / 'annotations' / split).glob('*.png'))
    counts = [np.bincount(np.asarray(Image.open(path)).ravel()) for path in paths]
    length = max(map(len, counts))
    return np.sum([np.pad(each, (0, length - len(each))) for each in counts], axis=0)


def without_position(counts: np.ndarray) -> dict[str, dict[str, float]]:
    """Scores of predictors with little or no position; all except the first recognise every digit.

    * ``background``: background everywhere.
    * ``one_kind``: for each digit, always the label that is most frequent.
    * ``even_guess``: each of a digit's four labels with probability 1/4; expected intersections and unions. Guessing
      a kind with probability p has, with kinds of equal frequency, the expected IoU p / (1 + 3 p), a concave function,
      so no other way of guessing has a higher mIoU.
    * ``odd_row``: it knows whether the row is odd, so two kinds are left, each with probability 1/2.

    Args:
        counts: Pixels with each label of the validation images, background first, then four for each digit.

    Returns:
        For each predictor ``mIoU``, ``mAcc`` and ``aAcc`` (0 to 1).
    """
    kinds = counts[1:].reshape(-1, KINDS)
    most_frequent = np.repeat(np.eye(KINDS)[kinds.argmax(1)][:, None], KINDS, axis=1)
    even = np.full((KINDS, KINDS), 1 / KINDS)
    # The kinds of odd rows are the odd ones.
    odd = (np.arange(KINDS)[:, None] - np.arange(KINDS)) % 2 == 0
    return {
        'background': _scores(counts, np.zeros((KINDS, KINDS))),
        'one_kind': _scores(counts, most_frequent),
        'even_guess': _scores(counts, even),
        'odd_row': _scores(counts, odd / odd.sum(1, keepdims=True)),
    }


def _scores(counts: np.ndarray, guess: np.ndarray) -> dict[str, float]:
    """Scores if a pixel of kind ``i`` is predicted as ``j`` with probability ``guess[..., i, j]``, else background.

    ``guess`` is ``(4, 4)``, or ``(digits, 4, 4)`` for a different one per digit.
    """
    kinds = counts[1:].reshape(-1, KINDS).astype(float)
    predicted = (kinds[:, None] @ guess).ravel()
    predicted = np.append(counts.sum() - predicted.sum(), predicted)
    right = np.append(counts[0], kinds * np.diagonal(guess, axis1=-2, axis2=-1))
    return {
        'mIoU': mean_iou(right, counts, predicted),
        'mAcc': float((right / counts).mean()),
        'aAcc': float(right.sum() / counts.sum()),
    }
