"""Helpers of the built data sets: folders that are built once, digits and photographs, and how these are painted.

Everything is made of scikit-learn's scanned digits and sample photographs; nothing is downloaded. Shapes: ``S`` is the
side of an image in pixels, ``T`` that of a digit's square tile.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from mmlape.checks import check_positive_int

PHOTOGRAPHS = ('china.jpg', 'flower.jpg')
# The parts of the digit images and of every photograph's columns that are for validation alone.
VAL_DIGITS = 0.2
VAL_COLUMNS = 0.3
SPLITS = ('train', 'val')
# A digit's ink ramps from transparent to opaque between these two values of the (0..1) scanned intensity.
INK_RANGE = (0.3, 0.55)
# Photographs are darkened by a factor in this range.
BRIGHTNESS = (0.35, 0.65)


class DigitBank(NamedTuple):
    """Digit images of a split: ``images`` ``(D, 8, 8)``, 0..1; ``targets`` ``(D,)``, 0..9; ``indices`` ``(D,)`` in
    scikit-learn's ``load_digits``."""

    images: np.ndarray
    targets: np.ndarray
    indices: np.ndarray


class PhotoRegion(NamedTuple):
    """The part of a photograph that a split may use: the file's ``name``, ``pixels`` ``(H, W, 3)`` uint8, RGB, and
    ``left``, the column of the whole photograph at which it begins."""

    name: str
    pixels: np.ndarray
    left: int


class FolderKind(NamedTuple):
    """A kind of built folders: a ``name`` for messages, a plural; the ``marker``, a file that is written last and says
    what the folder was built with; and the ``version`` of what options give."""

    name: str
    marker: str
    version: int


def build_once(
    root: Path,
    kind: FolderKind,
    options: dict[str, Any],
    build: Callable[[Path], None],
) -> Path:
    """Build ``root``, or find that it is there already.

    It is built beside ``root`` and renamed, so it appears complete or not at all. A folder that was built with other
    options, or from which files are missing, is replaced; FileExistsError if it holds something else.

    ``build`` fills the given empty folder (``images`` and ``annotations`` in it).
    """
    reason = _reason_to_build(root, kind, options)
    if reason is None:
        return root
    _log(f'Building the {kind.name} in {root}: {reason}.')
    root.parent.mkdir(parents=True, exist_ok=True)
    partial = _empty_beside(root)
    try:
        build(partial)
        marker = {
            'format_version': kind.version,
            'options': options,
            'fingerprint': _fingerprint(kind, options),
            'contents': _contents(partial),
        }
        (partial / kind.marker).write_text(json.dumps(marker, sort_keys=True) + '\n')
        # mkdtemp makes a folder that only its owner may read.
        partial.chmod(0o755)
        _swap_in(partial, root, kind)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return root


def check_integers(**options: tuple[Any, int, int]) -> dict[str, Any]:
    """Python integers of ``name=(value, low, high)``; ValueError for one that is out of range, TypeError for others."""
    return {
        name: check_positive_int(name, value, minimum=low, maximum=high)
        for name, (value, low, high) in options.items()
    }


def check_pair(name: str, value: Any, low: int, high: int) -> list[int]:
    """Two integers, the first not larger than the second; ValueError otherwise."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or value[0] > value[1]:
        raise ValueError(
            f'{name} must be two integers, the smallest and the largest, got {value!r}'
        )
    return [check_positive_int(name, each, minimum=low, maximum=high) for each in value]


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


def make_folders(folder: Path, split: str) -> tuple[Path, Path]:
    """New folders for the images and label maps of a split."""
    images, labels = folder / 'images' / split, folder / 'annotations' / split
    images.mkdir(parents=True)
    labels.mkdir(parents=True)
    return images, labels


def generators(options: dict[str, Any], split: str) -> Iterator[np.random.Generator]:
    """A generator for every image of a split, so that an image does not depend on how many there are."""
    for index in range(options[f'num_{split}']):
        yield np.random.default_rng([options['seed'], SPLITS.index(split), index])


def paint_background(
    rng: np.random.Generator, region: PhotoRegion, image_size: int, crop_side: tuple[int, int]
) -> tuple[np.ndarray, tuple[int, int, int, int]]:
    """A square crop of the region, resized to ``(S, S, 3)``, darkened, at times mirrored left to right.

    Returns the image, RGB uint8, and ``(x, y, width, height)`` of the crop in the whole photograph; ``crop_side``: its
    smallest and largest side in pixels.
    """
    height, width = region.pixels.shape[:2]
    side = int(rng.integers(crop_side[0], crop_side[1] + 1))
    x, y = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    # The crop is cut before it is resized, so that no pixel from beyond it is blended in.
    crop = Image.fromarray(region.pixels[y : y + side, x : x + side])
    image = np.asarray(crop.resize((image_size, image_size), Image.Resampling.BILINEAR))
    if rng.random() < 0.5:
        image = image[:, ::-1]
    image = np.clip(image * rng.uniform(*BRIGHTNESS), 0, 255).astype(np.uint8)
    return image, (region.left + x, y, side, side)


def ink_opacity(digit: np.ndarray, size: int) -> np.ndarray:
    """``(8, 8)`` intensities to ``(T, T)`` opacities in 0..1, ``T = size``."""
    scan = Image.fromarray(digit.astype(np.float32))
    smooth = np.asarray(scan.resize((size, size), Image.Resampling.BICUBIC))
    return np.clip((smooth - INK_RANGE[0]) / (INK_RANGE[1] - INK_RANGE[0]), 0, 1)


def blend(tile: np.ndarray, opacity: np.ndarray, ink: float | np.ndarray) -> None:
    """Paint a digit of ``opacity`` ``(T, T)`` in a grey level or colour onto ``(T, T, 3)``, in place."""
    opacity = opacity[..., None]
    tile[:] = np.round(opacity * ink + (1 - opacity) * tile).astype(np.uint8)


def _reason_to_build(root: Path, kind: FolderKind, options: dict[str, Any]) -> str | None:
    """Why ``root`` has to be built, None where it is what was asked for."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return 'there are none yet'
    marker = root / kind.marker
    if not marker.is_file():
        raise FileExistsError(
            f'{root} exists and is not a {kind.name} folder ({kind.marker} is missing): '
            'name another folder or remove this one'
        )
    try:
        stored = json.loads(marker.read_text())
    except (OSError, ValueError):
        return f'{kind.marker} cannot be read'
    if stored.get('fingerprint') != _fingerprint(kind, options):
        return 'those that are there were built with other options'
    if stored.get('contents') != _contents(root):
        return 'files are missing or were changed'
    return None


def _fingerprint(kind: FolderKind, options: dict[str, Any]) -> str:
    text = json.dumps({'format_version': kind.version, **options}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(root: Path) -> dict[str, int]:
    """Number and total size of the built files: cheap to compare, and enough to notice a damaged copy."""
    files = [path for folder in ('images', 'annotations') for path in (root / folder).rglob('*.*')]
    return {'files': len(files), 'bytes': sum(path.stat().st_size for path in files)}


def _empty_beside(root: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f'.{root.name}.partial-', dir=root.parent))


def _swap_in(partial: Path, root: Path, kind: FolderKind) -> None:
    """Put the finished folder in place of ``root``; the old one is moved out of the way first."""
    if root.exists():
        others = {path.name for path in root.iterdir()} - {path.name for path in partial.iterdir()}
        if others:
            raise FileExistsError(
                f'{root} holds {sorted(others)} beside the {kind.name} that are to be built again: move that, or name '
                'another folder'
            )
        old = _empty_beside(root)
        os.replace(root, old / root.name)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.replace(partial, root)
    except OSError:
        # Another process that was building the same may have finished first.
        if not (root / kind.marker).is_file():
            raise
        _log(f'{root} was built by another process.', logging.WARNING)


def _log(message: str, level: int = logging.INFO) -> None:
    # Takes seconds; programs that build are asked for their options first.
    from mmengine.logging import print_log

    print_log(message, logger='current', level=level)
