"""What the built data sets are made of: scikit-learn's scanned digits and sample photographs, split for validation."""

from __future__ import annotations

from typing import Any

import numpy as np

from .scene_painter import DigitBank, PhotoRegion

PHOTOGRAPHS = ('china.jpg', 'flower.jpg')
# The parts of the digit images and of every photograph's columns that are for validation alone.
VAL_DIGITS = 0.2
VAL_COLUMNS = 0.3
SPLITS = ('train', 'val')


def load_sources(seed: int) -> tuple[dict[str, DigitBank], dict[str, list[PhotoRegion]]]:
    """The digit images and photograph regions of each split; the splits share neither.

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """
    try:
        from sklearn.datasets import load_digits, load_sample_image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digit data sets are made of scikit-learn's digits and photographs: "
            'pip install scikit-learn (or mmlape[demo])',
            name=error.name,
        ) from error
    digits = load_digits()
    images = digits.images / 16.0
    order = np.random.default_rng([seed, len(SPLITS)]).permutation(len(images))
    num_val = round(VAL_DIGITS * len(images))
    chosen = {'train': np.sort(order[num_val:]), 'val': np.sort(order[:num_val])}
    banks = {
        split: DigitBank(images[ids], digits.target[ids], ids) for split, ids in chosen.items()
    }
    regions: dict[str, list[PhotoRegion]] = {split: [] for split in SPLITS}
    for name in PHOTOGRAPHS:
        pixels = load_sample_image(name)
        border = round((1 - VAL_COLUMNS) * pixels.shape[1])
        regions['train'].append(PhotoRegion(name, pixels[:, :border], 0))
        regions['val'].append(PhotoRegion(name, pixels[:, border:], border))
    return banks, regions


def describe_sources(
    banks: dict[str, DigitBank], regions: dict[str, list[PhotoRegion]]
) -> dict[str, Any]:
    """What each split may use, for a marker file."""
    return {
        split: {
            'digit_indices': banks[split].indices.tolist(),
            'photo_columns': {
                each.name: [each.left, each.left + each.pixels.shape[1]] for each in regions[split]
            },
        }
        for split in SPLITS
    }
