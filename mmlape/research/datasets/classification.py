"""Data sets for classifiers: digits as small colour images, and Long ListOps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
from mmengine.dataset import BaseDataset

from mmlape.checks import check_bool, check_options, check_positive_int
from mmlape.registry import DATASETS

from .building import PhotoRegion, blend, generators, ink_opacity, load_sources, paint_background
from .list_ops import END, HEAD, IDS

SIDE = 32
# Sides in pixels of the digits, and of the photographs' crops behind them.
DIGIT_SIDES = (26, SIDE)
CROP_SIDES = (96, 160)
# Colours of the ink, on photographs that are made darker still: a network of a few layers is to learn this in minutes.
INK = (150, 255)
DARKER = 0.6


@DATASETS.register_module()
class DigitImages(BaseDataset):
    """Every scanned digit of scikit-learn once, in a light colour on a crop of its sample photographs: 32 x 32 pixels,
    1,438 images for training and 359 for validation, which share no digit and no pixel of a photograph. It stands in
    for CIFAR-10, from which it differs by what its pipeline gets alone: ``img``, an RGB array ``(32, 32, 3)``, and
    ``gt_label``.

    Args:
        split: ``'train'`` (default) or ``'val'``.
        seed: Seed of everything random. Default 0.
        photographs: False for black instead of photographs, which for learning without labels are as good a thing to
            tell images apart by as digits are. Default True.
        whole: Each digit fills its image, as it was scanned: none is smaller or moved. Default False.
        options: Of MMEngine's ``BaseDataset`` (``pipeline``, ``indices``, ...).

    Raises:
        ModuleNotFoundError: scikit-learn is not installed.
    """

    METAINFO = dict(classes=tuple(map(str, range(10))))

    def __init__(
        self,
        split: Literal['train', 'val'] = 'train',
        seed: int = 0,
        photographs: bool = True,
        whole: bool = False,
        **options: Any,
    ) -> None:
        check_options(DigitImages, dict(split=split, seed=seed, photographs=photographs))
        self.split, self.seed, self.photographs = split, seed, photographs
        self.sides = (SIDE, SIDE) if check_bool('whole', whole) else DIGIT_SIDES
        super().__init__(**options)

    def load_data_list(self) -> list[dict]:
        """``img`` and ``gt_label`` of every image."""
        banks, regions = load_sources(self.seed)
        bank = banks[self.split]
        photographs = regions[self.split] if self.photographs else []
        options = {'seed': self.seed, f'num_{self.split}': len(bank.targets)}
        return [
            dict(img=_paint(rng, digit, photographs, self.sides), gt_label=int(label))
            for rng, digit, label in zip(
                generators(options, self.split), bank.images, bank.targets, strict=True
            )
        ]


def _paint(
    rng: np.random.Generator, digit: np.ndarray, regions: list[PhotoRegion], sides: tuple[int, int]
) -> np.ndarray:
    """An image of the ``digit`` ``(8, 8)``, ``(32, 32, 3)`` uint8."""
    image: np.ndarray = np.zeros((SIDE, SIDE, 3), np.uint8)
    if regions:
        region = regions[rng.integers(len(regions))]
        image = (paint_background(rng, region, SIDE, CROP_SIDES)[0] * DARKER).astype(np.uint8)
    side = int(rng.integers(sides[0], sides[1] + 1))
    y, x = rng.integers(SIDE - side + 1, size=2)
    tile = image[y : y + side, x : x + side]
    blend(tile, ink_opacity(digit, side), rng.uniform(*INK, size=3))
    return image


@DATASETS.register_module()
class ListOps(BaseDataset):
    """Long ListOps, of files as :func:`~mmlape.research.datasets.build_list_ops` writes them or of the published
    release, whose parentheses are passed over. A pipeline gets ``img``, token ids ``(1, length, 1)``, and ``gt_label``,
    the result, as from any classification data set; MMPretrain's preprocessor pads batches with 0, the id of padding.

    Ids are 1 to 10 for the digits 0 to 9, 11 to 14 for the operators and 15 for the closing bracket: a vocabulary of
    16.

    Args:
        brackets: Whether closing brackets are read. Default True. Long-Range Arena's reader dropped them by mistake
            until 4 March 2021 (commit c209b2a): without them nobody can tell where the arguments of an operator end.
        max_length: What is longer is cut off. Default 2000.
        options: Of MMEngine's ``BaseDataset`` (``ann_file``, ``data_root``, ``pipeline``, ``indices``, ...).

    Raises:
        ValueError: If a value is out of range, or a line of the file is none of ListOps.
    """

    METAINFO = dict(classes=tuple(map(str, range(10))))

    def __init__(self, brackets: bool = True, max_length: int = 2000, **options: Any) -> None:
        self.brackets = check_bool('brackets', brackets)
        self.max_length = check_positive_int('max_length', max_length)
        super().__init__(**options)

    def load_data_list(self) -> list[dict]:
        """``img`` and ``gt_label`` of every line."""
        path = Path(self.ann_file)
        lines = path.read_text(encoding='utf-8').splitlines()
        if not lines or lines[0].strip() != HEAD:
            raise ValueError(f'{path} is not a ListOps file: its first line must be {HEAD!r}')
        return [
            self._read(line, f'{path}, line {number}') for number, line in enumerate(lines[1:], 2)
        ]

    def _read(self, line: str, where: str) -> dict:
        source, _, target = line.partition('\t')
        tokens = [token for token in source.split() if token not in '()']
        unknown = [token for token in tokens if token not in IDS]
        if not tokens or unknown or target.strip() not in self.METAINFO['classes']:
            raise ValueError(
                f'{where}: expected tokens of {[*IDS]}, a tab and a digit, got '
                f'{unknown[0] if unknown else line[-80:]!r}'
            )
        if not self.brackets:
            tokens = [token for token in tokens if token != END]
        ids = np.array([IDS[token] for token in tokens[: self.max_length]], dtype=np.uint8)
        return dict(img=ids.reshape(1, -1, 1), gt_label=int(target))
