"""The digit scenes: a small detection, instance and semantic segmentation data set that is built, not downloaded.

A built folder looks like this (``{split}`` is ``train`` or ``val``)::

    ROOT/images/{split}/000000.jpg               RGB, image_size x image_size
    ROOT/annotations/{split}/000000.png          label map, uint8: 0 = background, digit + 1 elsewhere
    ROOT/annotations/instances_{split}.json      COCO: category id = digit + 1, name = '0' .. '9', masks as RLE
    ROOT/digit_scenes.json                       the options it was built with; written last
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from mmengine.logging import print_log
from PIL import Image

from .scene_painter import DigitBank, PhotoRegion, Scene, SceneStyle, paint_scene

DIGIT_CLASSES = tuple(str(digit) for digit in range(10))
SCENE_CLASSES = ('background', *DIGIT_CLASSES)

MARKER = 'digit_scenes.json'
# To be raised by every change after which the same options give other files.
FORMAT_VERSION = 1
PHOTOGRAPHS = ('china.jpg', 'flower.jpg')
# The parts of the digit images and of every photograph's columns that are for validation alone.
VAL_DIGITS = 0.2
VAL_COLUMNS = 0.3
SPLITS = ('train', 'val')
# A leftover of an interrupted build is removed when it is older than this; a build takes seconds.
STALE_SECONDS = 600


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
    root = Path(root)
    reason = _reason_to_build(root, options)
    if reason is None:
        return root
    print_log(f'Building the digit scenes in {root}: {reason}.', logger='current')
    root.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(root), dir=root.parent))
    try:
        _build(partial, options)
        # mkdtemp makes a folder that only its owner may read.
        partial.chmod(0o755)
        _swap_in(partial, root)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return root


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """The options in the form in which they are stored; ValueError with name and value where one is wrong."""
    checked = {}
    for name, low, high in (
        ('num_train', 1, 999_999),
        ('num_val', 1, 999_999),
        ('image_size', 32, 1024),
        ('seed', 0, 2**32 - 1),
    ):
        checked[name] = _number(name, options[name], low, high, integer=True)
    checked['digits_per_image'] = _pair(options, 'digits_per_image', 1, 100)
    checked['digit_size'] = _pair(options, 'digit_size', 8, checked['image_size'])
    checked['min_visible'] = _number('min_visible', options['min_visible'], 0, 1)
    checked['min_contrast'] = _number('min_contrast', options['min_contrast'], 0, 100)
    return checked


def _number(name: str, value: Any, low: float, high: float, integer: bool = False) -> int | float:
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = 'an integer' if integer else 'a number'
        raise ValueError(f'{name}={value!r}: expected {kind} from {low} to {high}')
    return int(value) if integer else float(value)


def _pair(options: dict[str, Any], name: str, low: int, high: int) -> list[int]:
    value = options[name]
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f'{name}={value!r}: expected two integers (smallest, largest)')
    pair = [_number(name, each, low, high, integer=True) for each in value]
    if pair[0] > pair[1]:
        raise ValueError(f'{name}={value!r}: the first must not be larger than the second')
    return pair


def _reason_to_build(root: Path, options: dict[str, Any]) -> str | None:
    """Why ``root`` has to be built, None where it is what was asked for."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return 'there are none yet'
    marker = root / MARKER
    if not marker.is_file():
        raise FileExistsError(
            f'{root} exists and is not a digit scenes folder ({MARKER} is missing): '
            'name another folder or remove this one'
        )
    try:
        stored = json.loads(marker.read_text())
    except (OSError, ValueError):
        return f'{MARKER} cannot be read'
    if stored.get('fingerprint') != _fingerprint(options):
        return 'those that are there were built with other options'
    if stored.get('contents') != _contents(root):
        return 'files are missing or were changed'
    return None


def _fingerprint(options: dict[str, Any]) -> str:
    text = json.dumps({'format_version': FORMAT_VERSION, **options}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(root: Path) -> dict[str, int]:
    """Number and total size of the built files: cheap to compare, and enough to notice a damaged copy."""
    files = [path for folder in ('images', 'annotations') for path in (root / folder).rglob('*.*')]
    return {'files': len(files), 'bytes': sum(path.stat().st_size for path in files)}


def _partial_prefix(root: Path) -> str:
    return f'.{root.name}.partial-'


def _remove_leftovers(root: Path) -> None:
    for path in root.parent.glob(f'{_partial_prefix(root)}*'):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            print_log(f'Removing {path}, left by an interrupted build.', logger='current')
            shutil.rmtree(path, ignore_errors=True)


def _swap_in(partial: Path, root: Path) -> None:
    """Put the finished folder in place of ``root``; the old one is moved out of the way first."""
    if root.exists():
        old = Path(tempfile.mkdtemp(prefix=_partial_prefix(root), dir=root.parent))
        os.replace(root, old / root.name)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.replace(partial, root)
    except OSError:
        # Another process that was building the same may have finished first.
        if not (root / MARKER).is_file():
            raise
        print_log(f'{root} was built by another process.', logger='current', level=logging.WARNING)


def _build(folder: Path, options: dict[str, Any]) -> None:
    banks, regions = _sources(options['seed'])
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
    marker = {
        'format_version': FORMAT_VERSION,
        'options': options,
        'fingerprint': _fingerprint(options),
        'contents': _contents(folder),
        'splits': {
            split: {
                'digit_indices': banks[split].indices.tolist(),
                'photo_columns': {
                    each.name: [each.left, each.left + each.pixels.shape[1]]
                    for each in regions[split]
                },
            }
            for split in SPLITS
        },
    }
    (folder / MARKER).write_text(json.dumps(marker, sort_keys=True) + '\n')


def _sources(seed: int) -> tuple[dict[str, DigitBank], dict[str, list[PhotoRegion]]]:
    """The digit images and photograph regions of each split."""
    try:
        from sklearn.datasets import load_digits, load_sample_image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "the digit scenes are made of scikit-learn's digits and photographs: "
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
