"""The digit cells: a small semantic segmentation data set in which the label depends on the digit and on its place.

A built folder looks like this (``{split}`` is ``train`` or ``val``)::

    ROOT/images/{split}/000000.png               RGB, (cells * cell_size) squared
    ROOT/annotations/{split}/000000.png          label map, uint8: 0 = background, else see label_of
    ROOT/digit_cells.json                        the options it was built with; written last

The image is a board of ``cells`` x ``cells`` squares. A square shows the background alone, or one digit; in the latter
case all its pixels carry the label of that digit in a square of that kind. There are four kinds of squares
(:func:`kind_of_cell`), laid out so that mirroring the board leads to every kind equally often. As the background is
mirrored at random too, and digits are drawn alike in every square, nothing in the pixels says which kind a square is:
who does not know where it lies guesses one of four.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .built_folder import FolderKind, build_once, check_number, check_pair
from .scene_painter import DigitBank, PhotoRegion, ink_opacity, paint_background
from .sources import SPLITS, describe_sources, load_sources

KINDS = 4
# The version is to be raised by every change after which the same options give other files.
KIND = FolderKind(name='digit cells', marker='digit_cells.json', version=1)
# Digits are drawn like chalk, on photographs darker than those of the digit scenes: telling them from what is behind
# them is not what this data set is about.
GREY_RANGE = (180, 255)
DARKER = 0.7
# Sides in pixels of the photographs' crops.
CROP_SIDES = (96, 192)


def kind_of_cell(row: int, column: int) -> int:
    """``(row + 2 * column) mod 4``, the kind 0..3 of a square.

    With an even number of squares on each side, a square and its mirror images (left to right, top to bottom, both) are
    of four different kinds: mirroring rows changes whether the sum is odd, mirroring columns adds 2.
    """
    return (row + 2 * column) % KINDS


def label_of(digit_number: int, row: int, column: int) -> int:
    """Label 1.. of a square; ``digit_number`` counts in the option ``digits``."""
    return 1 + KINDS * digit_number + kind_of_cell(row, column)


def cell_classes(digits: tuple[int, ...] = (0, 1, 4)) -> tuple[str, ...]:
    """Names of the labels: ``'background'``, then ``'0 in kind 0'`` and so on."""
    return (
        'background',
        *(f'{digit} in kind {kind}' for digit in digits for kind in range(KINDS)),
    )


def build_digit_cells(
    root: str | os.PathLike,
    *,
    num_train: int = 3000,
    num_val: int = 400,
    cells: int = 4,
    cell_size: int = 8,
    digit_size: tuple[int, int] = (8, 8),
    digits: tuple[int, ...] = (0, 1, 4),
    occupied: float = 0.5,
    seed: int = 0,
) -> Path:
    """Build the digit cells in ``root``, or find that they are there already.

    scikit-learn's scanned digits lie on darkened crops of its two sample photographs; nothing is downloaded. The same
    options give the same bytes with the same versions of NumPy, Pillow and scikit-learn. Training and validation images
    share no digit image and no pixel of a photograph. The folder appears complete or not at all; one that was built
    with other options, or from which files are missing, is replaced.

    Args:
        root: The folder to build; see the module's text for what it then holds.
        num_train: Number of training images.
        num_val: Number of validation images.
        cells: Squares in each row and column, an even number.
        cell_size: Side of a square in pixels, at least 8.
        digit_size: Smallest and largest side of a digit's tile in pixels; a smaller one lies anywhere in its square.
        digits: The digits that occur, in the order in which they are numbered.
        occupied: The probability (0 to 1) that a square shows a digit.
        seed: Seed of everything random.

    Returns:
        ``root`` as a path.

    Raises:
        ValueError: An option has a wrong type or is out of range.
        FileExistsError: ``root`` holds something else.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    options = _checked(
        {
            'num_train': num_train,
            'num_val': num_val,
            'cells': cells,
            'cell_size': cell_size,
            'digit_size': digit_size,
            'digits': digits,
            'occupied': occupied,
            'seed': seed,
        }
    )
    return build_once(Path(root), KIND, options, lambda folder: _build(folder, options))


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options in the form in which they are stored; ValueError with name and value where one is wrong."""
    checked: dict[str, Any] = {}
    for name, low, high in (
        ('num_train', 1, 999_999),
        ('num_val', 1, 999_999),
        ('cells', 2, 64),
        ('cell_size', 8, 256),
        ('seed', 0, 2**32 - 1),
    ):
        checked[name] = check_number(name, options[name], low, high, integer=True)
    if checked['cells'] % 2:
        raise ValueError(f'cells={options["cells"]!r}: expected an even number')
    checked['digit_size'] = check_pair('digit_size', options['digit_size'], 8, checked['cell_size'])
    checked['occupied'] = check_number('occupied', options['occupied'], 0, 1)
    digits = options['digits']
    if not isinstance(digits, (tuple, list)) or not digits or len(set(digits)) != len(digits):
        raise ValueError(f'digits={digits!r}: expected different digits')
    checked['digits'] = [check_number('digits', each, 0, 9, integer=True) for each in digits]
    return checked


def _build(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    banks, regions = load_sources(options['seed'])
    for number, split in enumerate(SPLITS):
        images, labels = folder / 'images' / split, folder / 'annotations' / split
        images.mkdir(parents=True)
        labels.mkdir(parents=True)
        groups = [_only(banks[split], digit) for digit in options['digits']]
        for index in range(options[f'num_{split}']):
            # Every image has a generator of its own, so that it does not depend on how many there are.
            rng = np.random.default_rng([options['seed'], number, index])
            image, label_map = paint_board(rng, groups, regions[split], options)
            # Lossless: JPEG's blocks and colour would differ between squares.
            Image.fromarray(image).save(images / f'{index:06d}.png')
            Image.fromarray(label_map).save(labels / f'{index:06d}.png')
    return {'splits': describe_sources(banks, regions)}


def _only(bank: DigitBank, digit: int) -> DigitBank:
    chosen = bank.targets == digit
    return DigitBank(bank.images[chosen], bank.targets[chosen], bank.indices[chosen])


def paint_board(
    rng: np.random.Generator,
    groups: list[DigitBank],
    regions: list[PhotoRegion],
    options: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """One image ``(S, S, 3)`` and its label map ``(S, S)``, both uint8.

    Args:
        rng: The same state gives the same board.
        groups: The images of each digit that occurs.
        regions: The photographs.
        options: As stored by :func:`build_digit_cells`.
    """
    cells, size = options['cells'], options['cell_size']
    sides = (CROP_SIDES[0], min(CROP_SIDES[1], *(min(r.pixels.shape[:2]) for r in regions)))
    region = regions[rng.integers(len(regions))]
    image, _ = paint_background(rng, region, cells * size, sides)
    # paint_background mirrors left to right; top to bottom makes that every mirror image is as likely.
    if rng.random() < 0.5:
        image = image[::-1]
    image = (image * DARKER).astype(np.uint8)
    labels = np.zeros(image.shape[:2], dtype=np.uint8)
    for row, column in np.ndindex(cells, cells):
        if rng.random() >= options['occupied']:
            continue
        square = np.s_[row * size : (row + 1) * size, column * size : (column + 1) * size]
        number = int(rng.integers(len(groups)))
        _draw(rng, image[square], groups[number], options['digit_size'])
        labels[square] = label_of(number, row, column)
    return image, labels


def _draw(rng: np.random.Generator, square: np.ndarray, group: DigitBank, sides: list[int]) -> None:
    """Blend one of the group's digits into a square ``(S, S, 3)``, in place."""
    side = int(rng.integers(sides[0], sides[1] + 1))
    opacity = ink_opacity(group.images[rng.integers(len(group.images))], side)[..., None]
    y, x = rng.integers(square.shape[0] - side + 1, size=2)
    tile = square[y : y + side, x : x + side]
    tile[:] = np.round(opacity * rng.uniform(*GREY_RANGE) + (1 - opacity) * tile).astype(np.uint8)
