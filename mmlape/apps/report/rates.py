"""Precision, recall and F1 of boxes over the minimum score."""

from __future__ import annotations

import numpy as np

BINS = 1000  # of the scores from 0 to 1


class ScoreCounts:
    """Found boxes of each class by their score, in bins: memory does not grow with the images.

    Args:
        classes: How many there are.

    Attributes:
        true: ``(classes,)``, the true boxes.
        right, wrong: ``(classes, BINS)``, found boxes that match a true one of their class, and others.
    """

    def __init__(self, classes: int) -> None:
        self.true = np.zeros(classes, np.int64)
        self.right = np.zeros((classes, BINS), np.int32)
        self.wrong = np.zeros_like(self.right)

    def add(
        self, true: np.ndarray, labels: np.ndarray, scores: np.ndarray, right: np.ndarray
    ) -> None:
        """Count labels ``true`` of an image, and found boxes: labels, scores, and whether each is right."""
        np.add.at(self.true, true, 1)
        # In float32, 0.29 * 1000 would be below 290.
        bins = np.clip(np.round(scores.astype(np.float64) * BINS, 3).astype(int), 0, BINS - 1)
        for counts, chosen in ((self.right, right), (self.wrong, ~right)):
            np.add.at(counts, (labels[chosen], bins[chosen]), 1)

    def merge(self, other: ScoreCounts) -> None:
        """Add those of other images."""
        self.true += other.true
        self.right += other.right
        self.wrong += other.wrong

    def rates(self) -> np.ndarray:
        """Precision, recall and F1 ``(3, classes + 1, BINS)`` with minimum scores of 0, 1 / BINS, ...; the last row is
        of all classes together. NaN where there is nothing to divide by."""
        right, found, true = (
            np.vstack([each, each.sum(0, keepdims=True)]).astype(np.float64)
            for each in (_above(self.right), _above(self.right + self.wrong), self.true[:, None])
        )
        with np.errstate(invalid='ignore'):
            return np.stack([right / found, right / true, 2 * right / (found + true)])

    def best(self) -> int | None:
        """The bin at which the F1 of all classes together is highest, in the middle of the longest range where it is;
        None if no box is right."""
        f1 = np.nan_to_num(self.rates()[2, -1])
        if not f1.max():
            return None
        places = np.flatnonzero(f1 == f1.max())
        longest = max(np.split(places, np.flatnonzero(np.diff(places) > 1) + 1), key=len)
        return int(longest[len(longest) // 2])


def _above(counts: np.ndarray) -> np.ndarray:
    """How many are in each bin and those above it."""
    return counts[:, ::-1].cumsum(axis=1)[:, ::-1]
