"""The digit scenes and the digit cells: small data sets that are built, not downloaded.

``{split}`` is ``train`` or ``val``. Scenes, for detection and instance, semantic and panoptic segmentation::

    ROOT/images/{split}/000000.jpg               RGB, image_size x image_size
    ROOT/annotations/{split}/000000.png          label map, uint8: 0 = background, digit + 1 elsewhere
    ROOT/annotations/instances_{split}.json      COCO: category id = digit + 1, name = '0' .. '9', masks as RLE
    ROOT/annotations/panoptic_{split}.json       COCO's panoptic format: the same, and 'background', 11, as stuff
    ROOT/annotations/panoptic_{split}/000000.png  ids of segments, as red + 256 * green + 65536 * blue
    ROOT/digit_scenes.json                       the options it was built with; written last

Cells, for semantic segmentation in which the label depends on the digit and on its place::

    ROOT/images/{split}/000000.png               RGB, (cells * cell_size) squared
    ROOT/annotations/{split}/000000.png          label map, uint8: 0 = background, else see label_of
    ROOT/digit_cells.json                        the options it was built with; written last

An image of cells is a board of ``cells`` x ``cells`` squares. A square shows the background alone, or one digit; then
all its pixels carry the label of that digit in a square of that kind. There are four kinds of squares
(:func:`kind_of_cell`), laid out so that mirroring the board leads to every kind equally often. As the background is
mirrored at random too, and digits are drawn alike in every square, nothing in the pixels says which kind a square is:
who does not know where it lies guesses one of four.

Both are made of scikit-learn's scanned handwritten digits on darkened crops of its two sample photographs. The same
options give the same bytes with the same versions of NumPy, Pillow and scikit-learn. Training and validation images
share no digit image and no pixel of a photograph (validation crops come from the right-hand 30 % of each photograph). A
folder appears complete or not at all: it is built beside ``root`` and renamed. One that was built with other options,
or from which files are missing, is replaced.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from mmlape.checks import check_number, check_positive_int, check_rate

from .building import (
    SPLITS,
    DigitBank,
    FolderKind,
    PhotoRegion,
    blend,
    build_once,
    check_integers,
    check_pair,
    generators,
    ink_opacity,
    load_sources,
    make_folders,
    paint_background,
)

DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
SCENE_CLASSES = ('background', *DIGIT_CLASSES)
# The versions are to be raised by every change after which the same options give other files.
SCENES = FolderKind(name='digit scenes', marker='digit_scenes.json', version=2)
CELLS = FolderKind(name='digit cells', marker='digit_cells.json', version=1)
PLACEMENT_TRIALS = 20
GREY_TRIALS = 32
# Digits are drawn like chalk: light grey levels, on darkened photographs.
GREY_RANGE = (130, 255)
# In cells lighter still, on darker ones: telling digits from what is behind them is not what these are about.
CELL_GREY_RANGE = (180, 255)
CELL_DARKER = 0.7
CELL_CROP_SIDES = (96, 192)  # sides in pixels of the photographs' crops
KINDS = 4  # kinds of squares
# Ids of backgrounds, above those of digits. No id is used twice: MMDetection's panoptic data set reads all segments of
# an id for each of them.
FIRST_BACKGROUND = 2**23


def build_digit_scenes(
    root: str | os.PathLike,
    *,
    num_train: int = 2400,
    num_val: int = 200,
    image_size: int = 96,
    digits_per_image: tuple[int, int] = (2, 4),
    digit_size: tuple[int, int] = (24, 44),
    min_visible: float = 0.8,
    min_contrast: float = 60,
    seed: int = 0,
) -> Path:
    """Build the digit scenes in ``root``, or find that they are there already.

    Digits have random sizes, places and (light) grey levels. They may hide parts of each other: masks and boxes are of
    what is visible.

    Args:
        root: The folder to build; see the module's text for what it then holds.
        num_train: Number of training images.
        num_val: Number of validation images.
        image_size: Width and height of every image in pixels, at least 32.
        digits_per_image: Fewest and most digits drawn for an image. A digit that finds no free place is left out.
        digit_size: Smallest and largest side of a digit's square tile in pixels; a digit fills most of its tile.
        min_visible: The part (0 to 1) of a digit's ink that later digits must leave visible.
        min_contrast: Wanted difference (0 to 100 grey levels) between a digit and the mean of what it covers; half of
            it between digits that touch.
        seed: Seed of everything random.

    Returns:
        ``root`` as a path.

    Raises:
        TypeError, ValueError: An option has a wrong type, or is out of range.
        FileExistsError: ``root`` holds something else.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    options = check_integers(
        num_train=(num_train, 1, 999_999),
        num_val=(num_val, 1, 999_999),
        image_size=(image_size, 32, 1024),
        seed=(seed, 0, 2**32 - 1),
    )
    options |= dict(
        digits_per_image=check_pair('digits_per_image', digits_per_image, 1, 100),
        digit_size=check_pair('digit_size', digit_size, 8, options['image_size']),
        min_visible=check_rate('min_visible', min_visible, with_one=True),
        min_contrast=check_number('min_contrast', min_contrast, minimum=0),
    )
    return build_once(Path(root), SCENES, options, lambda folder: _build_scenes(folder, options))


def _build_scenes(folder: Path, options: dict[str, Any]) -> None:
    banks, regions = load_sources(options['seed'])
    # The same range for both splits: what fits into the smallest region.
    crop_side = 96, min(min(each.pixels.shape[:2]) for each in regions['val'])
    for split in SPLITS:
        images, labels = make_folders(folder, split)
        maps = folder / 'annotations' / f'panoptic_{split}'
        maps.mkdir()
        digits = [
            dict(id=number, name=name, supercategory='digit')
            for number, name in enumerate(DIGIT_CLASSES, 1)
        ]
        background = dict(id=len(digits) + 1, name=SCENE_CLASSES[0], isthing=0)
        coco: dict[str, Any] = dict(
            info=dict(description=f'mmlape digit scenes, {split}'),
            images=[],
            annotations=[],
            categories=digits,
        )
        panoptic: dict[str, Any] = dict(
            images=coco['images'],
            annotations=[],
            categories=[*(dict(digit, isthing=1) for digit in digits), background],
        )
        for number, rng in enumerate(generators(options, split)):
            scene = paint_scene(rng, banks[split], regions[split], options, crop_side)
            Image.fromarray(scene.image).save(images / f'{number:06d}.jpg', quality=90)
            # Index -1 of the table, the background's, is its last entry.
            table = np.array([digit + 1 for digit in scene.digits] + [0], dtype=np.uint8)
            label_map = Image.fromarray(table[scene.owner])
            label_map.save(labels / f'{number:06d}.png', optimize=True)
            _annotate(coco, scene, number)
            segments, ids = _segments(coco, scene, number)
            name = f'{number:06d}.png'
            panoptic['annotations'].append(dict(image_id=number, file_name=name, **segments))
            channels = (ids[..., None] >> np.array([0, 8, 16])).astype(np.uint8)
            Image.fromarray(channels).save(maps / name, optimize=True)
        for kind, content in (('instances', coco), ('panoptic', panoptic)):
            text = json.dumps(content, sort_keys=True, separators=(',', ':')) + '\n'
            (folder / 'annotations' / f'{kind}_{split}.json').write_text(text)


def _annotate(coco: dict[str, Any], scene: Scene, number: int) -> None:
    """Enter a scene into the content of a COCO file."""
    height, width = scene.owner.shape
    entry = dict(id=number, file_name=f'{number:06d}.jpg', width=width, height=height)
    coco['images'].append(dict(entry, photo=scene.photo, photo_crop=scene.crop))
    for instance, (digit, index) in enumerate(zip(scene.digits, scene.indices, strict=True)):
        mask = scene.owner == instance
        # With min_visible=0, a digit may be hidden altogether.
        left, top, right, bottom = Image.fromarray(mask).getbbox() or (0, 0, 0, 0)
        coco['annotations'].append(
            dict(
                id=len(coco['annotations']) + 1,
                image_id=number,
                category_id=digit + 1,
                bbox=[left, top, right - left, bottom - top],
                area=int(mask.sum()),
                iscrowd=0,
                segmentation=run_lengths(mask),
                digit_index=index,
            )
        )


def _segments(
    coco: dict[str, Any], scene: Scene, number: int
) -> tuple[dict[str, list[dict]], np.ndarray]:
    """``segments_info`` of the scene annotated last, and the ids of its segments, ``(S, S)``."""
    digits = coco['annotations'][-len(scene.digits) :]
    background = dict(
        id=FIRST_BACKGROUND + number,
        category_id=len(DIGIT_CLASSES) + 1,
        bbox=[0, 0, *scene.owner.shape],
        area=int((scene.owner < 0).sum()),
        iscrowd=0,
    )
    seen = [{key: each[key] for key in background} for each in digits if each['area']]
    ids = np.array([each['id'] for each in [*digits, background]])  # the background's is entry -1
    return dict(segments_info=[*seen, background]), ids[scene.owner]


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """COCO's uncompressed RLE of an ``(H, W)`` mask: column by column, beginning with zeros."""
    flat = mask.flatten(order='F')
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    bounds = np.concatenate([[0] if not flat[0] else [0, 0], changes, [flat.size]])
    return {'size': [int(side) for side in mask.shape], 'counts': np.diff(bounds).tolist()}


@dataclass
class Scene:
    """A finished scene; ``digits`` and ``indices`` (in ``load_digits``) are of each of the K instances."""

    image: np.ndarray  # (S, S, 3) uint8, RGB
    owner: (
        np.ndarray
    )  # (S, S) int16: the instance 0..K-1 that is seen at a pixel, -1 for background
    photo: str  # file name
    crop: tuple[int, int, int, int]  # (x, y, width, height) of the background in the photograph
    digits: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)


def paint_scene(
    rng: np.random.Generator,
    bank: DigitBank,
    regions: list[PhotoRegion],
    options: dict[str, Any],
    crop_side: tuple[int, int],
) -> Scene:
    """Draw one scene by the ``options`` of :func:`build_digit_scenes`; the same generator state gives the same scene.

    A digit that finds no place in ``PLACEMENT_TRIALS`` trials without hiding too much of another one is left out, so a
    scene may hold fewer digits than were drawn for it, but always at least one.
    """
    region = regions[rng.integers(len(regions))]
    size = options['image_size']
    image, crop = paint_background(rng, region, size, crop_side)
    owner = np.full((size, size), -1, dtype=np.int16)
    scene = Scene(image=image, owner=owner, photo=region.name, crop=crop)
    full_areas: list[int] = []
    levels: list[float] = []
    low, high = options['digits_per_image']
    smallest, largest = options['digit_size']
    contrast = options['min_contrast']
    for _ in range(rng.integers(low, high + 1)):
        chosen = rng.integers(len(bank.indices))
        opacity = ink_opacity(bank.images[chosen], int(rng.integers(smallest, largest + 1)))
        ink = opacity > 0.5
        place = _find_place(rng, ink, owner, full_areas, options['min_visible'])
        if place is None:
            continue
        # Digits that touch or overlap must differ too, or nobody could tell where one ends.
        others = owner[place]
        unlike = [(float(image[place][ink].mean()), contrast)]
        unlike += [(levels[other], contrast / 2) for other in np.unique(others[others >= 0])]
        levels.append(_grey_level(rng, unlike))
        blend(image[place], opacity, levels[-1])
        owner[place][ink] = len(scene.digits)
        full_areas.append(int(ink.sum()))
        scene.digits.append(int(bank.targets[chosen]))
        scene.indices.append(int(bank.indices[chosen]))
    return scene


def _find_place(
    rng: np.random.Generator,
    ink: np.ndarray,
    owner: np.ndarray,
    full_areas: list[int],
    min_visible: float,
) -> tuple[slice, slice] | None:
    """The rows and columns of a tile that leaves enough of the digits below its ``ink`` visible, or None."""
    size = len(ink)
    room = len(owner) - size + 1
    visible = np.bincount(owner[owner >= 0], minlength=len(full_areas))
    for _ in range(PLACEMENT_TRIALS):
        x, y = int(rng.integers(room)), int(rng.integers(room))
        place = np.s_[y : y + size, x : x + size]
        below = owner[place][ink]
        hidden = np.bincount(below[below >= 0], minlength=len(full_areas))
        if (visible - hidden >= min_visible * np.asarray(full_areas)).all():
            return place
    return None


def _grey_level(rng: np.random.Generator, unlike: list[tuple[float, float]]) -> float:
    """The first of some random levels that keeps the wanted distance from every ``(level, distance)``, or the best."""
    candidates = rng.uniform(*GREY_RANGE, GREY_TRIALS)
    margins = np.min([np.abs(candidates - level) - distance for level, distance in unlike], axis=0)
    enough = np.flatnonzero(margins >= 0)
    return float(candidates[enough[0] if len(enough) else margins.argmax()])


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
        TypeError, ValueError: An option has a wrong type, or is out of range.
        FileExistsError: ``root`` holds something else.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    options = check_integers(
        num_train=(num_train, 1, 999_999),
        num_val=(num_val, 1, 999_999),
        cells=(cells, 2, 64),
        cell_size=(cell_size, 8, 256),
        seed=(seed, 0, 2**32 - 1),
    )
    if options['cells'] % 2:
        raise ValueError(f'cells={cells!r}: expected an even number')
    if not isinstance(digits, (tuple, list)) or not digits or len(set(digits)) != len(digits):
        raise ValueError(f'digits={digits!r}: expected different digits')
    options |= dict(
        digit_size=check_pair('digit_size', digit_size, 8, options['cell_size']),
        occupied=check_rate('occupied', occupied, with_one=True),
        digits=[check_positive_int('digits', each, minimum=0, maximum=9) for each in digits],
    )
    return build_once(Path(root), CELLS, options, lambda folder: _build_cells(folder, options))


def _build_cells(folder: Path, options: dict[str, Any]) -> None:
    banks, regions = load_sources(options['seed'])
    for split in SPLITS:
        images, labels = make_folders(folder, split)
        chosen = [banks[split].targets == digit for digit in options['digits']]
        groups = [DigitBank(*(part[of_digit] for part in banks[split])) for of_digit in chosen]
        for number, rng in enumerate(generators(options, split)):
            image, label_map = paint_board(rng, groups, regions[split], options)
            # Lossless: JPEG's blocks and colour would differ between squares.
            Image.fromarray(image).save(images / f'{number:06d}.png')
            Image.fromarray(label_map).save(labels / f'{number:06d}.png')


def paint_board(
    rng: np.random.Generator,
    groups: list[DigitBank],
    regions: list[PhotoRegion],
    options: dict[str, Any],
) -> tuple[np.ndarray, np.ndarray]:
    """One image ``(S, S, 3)`` and its label map ``(S, S)``, both uint8; ``groups``: the images of each digit that
    occurs, ``options``: as stored by :func:`build_digit_cells`. The same generator state gives the same board."""
    cells, size = options['cells'], options['cell_size']
    smallest, largest = CELL_CROP_SIDES
    sides = smallest, min(largest, *(min(region.pixels.shape[:2]) for region in regions))
    region = regions[rng.integers(len(regions))]
    image, _ = paint_background(rng, region, cells * size, sides)
    # paint_background mirrors left to right; top to bottom makes that every mirror image is as likely.
    if rng.random() < 0.5:
        image = image[::-1]
    image = (image * CELL_DARKER).astype(np.uint8)
    labels = np.zeros(image.shape[:2], dtype=np.uint8)
    low, high = options['digit_size']
    for row, column in np.ndindex(cells, cells):
        if rng.random() >= options['occupied']:
            continue
        square = np.s_[row * size : (row + 1) * size, column * size : (column + 1) * size]
        number = int(rng.integers(len(groups)))
        digits, side = groups[number].images, int(rng.integers(low, high + 1))
        opacity = ink_opacity(digits[rng.integers(len(digits))], side)
        y, x = rng.integers(size - side + 1, size=2)
        tile = image[square][y : y + side, x : x + side]
        blend(tile, opacity, rng.uniform(*CELL_GREY_RANGE))
        labels[square] = label_of(number, row, column)
    return image, labels
