"""The digit scenes: a small detection, instance and semantic segmentation data set that is built, not downloaded.

A built folder looks like this (``{split}`` is ``train`` or ``val``)::

    ROOT/images/{split}/000000.jpg               RGB, image_size x image_size
    ROOT/annotations/{split}/000000.png          label map, uint8: 0 = background, digit + 1 elsewhere
    ROOT/annotations/instances_{split}.json      COCO: category id = digit + 1, name = '0' .. '9', masks as RLE
    ROOT/digit_scenes.json                       the options it was built with; written last
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from .built_folder import FolderKind, build_once, check_number, check_pair
from .scene_painter import Scene, SceneStyle, paint_scene
from .sources import SPLITS, describe_sources, load_sources

DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
SCENE_CLASSES = ('background', *DIGIT_CLASSES)

# The version is to be raised by every change after which the same options give other files.
KIND = FolderKind(name='digit scenes', marker='digit_scenes.json', version=1)


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

    scikit-learn's scanned handwritten digits are pasted at random sizes, places and (light) grey levels onto darkened
    crops of its two sample photographs; nothing is downloaded. Digits may hide parts of each other: masks and boxes
    are of what is visible. The same options give the same bytes with the same versions of NumPy, Pillow and
    scikit-learn. Training and validation images share no digit image and no pixel of a photograph (validation crops
    come from the right-hand 30 % of each photograph).

    The folder appears complete or not at all: it is built beside ``root`` and renamed. A folder that was built with
    other options, or from which files are missing, is replaced.

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
        ValueError: An option has a wrong type or is out of range.
        FileExistsError: ``root`` holds something else.
        ModuleNotFoundError: scikit-learn is not installed.
    """
    options = {
        'num_train': num_train,
        'num_val': num_val,
        'image_size': image_size,
        'digits_per_image': digits_per_image,
        'digit_size': digit_size,
        'min_visible': min_visible,
        'min_contrast': min_contrast,
        'seed': seed,
    }
    options = _checked(options)
    return build_once(Path(root), KIND, options, lambda folder: _build(folder, options))


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options in the form in which they are stored; ValueError with name and value where one is wrong."""
    checked: dict[str, Any] = {}
    for name, low, high in (
        ('num_train', 1, 999_999),
        ('num_val', 1, 999_999),
        ('image_size', 32, 1024),
        ('seed', 0, 2**32 - 1),
    ):
        checked[name] = check_number(name, options[name], low, high, integer=True)
    checked['digits_per_image'] = check_pair(
        'digits_per_image', options['digits_per_image'], 1, 100
    )
    checked['digit_size'] = check_pair(
        'digit_size', options['digit_size'], 8, checked['image_size']
    )
    checked['min_visible'] = check_number('min_visible', options['min_visible'], 0, 1)
    checked['min_contrast'] = check_number('min_contrast', options['min_contrast'], 0, 100)
    return checked


def _build(folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    banks, regions = load_sources(options['seed'])
    style = SceneStyle(
        image_size=options['image_size'],
        digits_per_image=tuple(options['digits_per_image']),
        digit_size=tuple(options['digit_size']),
        min_visible=options['min_visible'],
        min_contrast=options['min_contrast'],
        # The same range for both splits: what fits into the smallest region.
        crop_side=(96, min(min(each.pixels.shape[:2]) for each in regions['val'])),
    )
    for number, split in enumerate(SPLITS):
        writer = _SplitWriter(folder, split)
        for index in range(options[f'num_{split}']):
            # Every image has a generator of its own, so that it does not depend on how many there are.
            rng = np.random.default_rng([options['seed'], number, index])
            writer.add(paint_scene(rng, banks[split], regions[split], style))
        writer.close()
    return {'splits': describe_sources(banks, regions)}


class _SplitWriter:
    """Writes the scenes of one split as they come, and its COCO file at the end."""

    def __init__(self, folder: Path, split: str) -> None:
        self.images = folder / 'images' / split
        self.labels = folder / 'annotations' / split
        self.coco_file = folder / 'annotations' / f'instances_{split}.json'
        self.images.mkdir(parents=True)
        self.labels.mkdir(parents=True)
        self.coco: dict[str, Any] = {
            'info': {'description': f'mmlape digit scenes, {split}'},
            'images': [],
            'annotations': [],
            'categories': [
                {'id': number + 1, 'name': name, 'supercategory': 'digit'}
                for number, name in enumerate(DIGIT_CLASSES)
            ],
        }

    def add(self, scene: Scene) -> None:
        number = len(self.coco['images'])
        height, width = scene.owner.shape
        file_name = f'{number:06d}.jpg'
        Image.fromarray(scene.image).save(self.images / file_name, quality=90)
        Image.fromarray(label_map(scene)).save(self.labels / f'{number:06d}.png', optimize=True)
        self.coco['images'].append(
            {
                'id': number,
                'file_name': file_name,
                'width': width,
                'height': height,
                'photo': scene.photo,
                'photo_crop': scene.crop,
            }
        )
        for instance, (digit, index) in enumerate(zip(scene.digits, scene.indices, strict=True)):
            mask = scene.owner == instance
            self.coco['annotations'].append(
                {
                    'id': len(self.coco['annotations']) + 1,
                    'image_id': number,
                    'category_id': digit + 1,
                    'bbox': bounding_box(mask),
                    'area': int(mask.sum()),
                    'iscrowd': 0,
                    'segmentation': run_lengths(mask),
                    'digit_index': index,
                }
            )

    def close(self) -> None:
        self.coco_file.write_text(
            json.dumps(self.coco, sort_keys=True, separators=(',', ':')) + '\n'
        )


def label_map(scene: Scene) -> np.ndarray:
    """``(S, S)`` uint8 array: 0 for background, digit + 1 where a digit is seen."""
    # Index -1 of the table, the background's, is its last entry.
    return np.array([digit + 1 for digit in scene.digits] + [0], dtype=np.uint8)[scene.owner]


def bounding_box(mask: np.ndarray) -> list[int]:
    """``[x, y, width, height]`` in pixels of the true values of an ``(H, W)`` mask."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return [int(each) for each in (columns[0], rows[0], np.ptp(columns) + 1, np.ptp(rows) + 1)]


def run_lengths(mask: np.ndarray) -> dict[str, list[int]]:
    """COCO's uncompressed RLE of an ``(H, W)`` mask: column by column, beginning with zeros."""
    flat = mask.flatten(order='F')
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    bounds = np.concatenate([[0] if not flat[0] else [0, 0], changes, [flat.size]])
    return {'size': [int(side) for side in mask.shape], 'counts': np.diff(bounds).tolist()}
