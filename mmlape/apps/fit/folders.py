"""Folders of own data: what their names say, and the images in them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from mmlape.apps.inference.reading import IMAGES, below, check_regular
from mmlape.checkpoints.report import listed

PARTS = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test',))
IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'JPEGImages')


def part_of(text: str) -> str | None:
    """The part that a name or path is of: ``'train'``, ``'val'``, ``'test'`` or None."""
    words = re.findall('[a-z]+', text.lower())
    return next((part for part, names in PARTS.items() if set(names) & set(words)), None)


def images_in(folder: Path) -> list[Path]:
    """The images of a folder, searched to the bottom, through links too, in order; without those that an earlier
    `mmlape fit` has drawn there.

    Raises:
        ValueError: If one of them is a named pipe, a device or a link to nothing.
    """
    images = [path for path in below(folder)[0] if path.suffix.lower() in IMAGES]
    places = {path.parent for path in images}
    inner = {each for place in places for each in (place, *place.parents) if folder in each.parents}
    if drawn := {each for each in inner if (each / 'fit.py').is_file()}:
        images = [path for path in images if not drawn.intersection(path.parents)]
    for path in images:
        check_regular(path)
    return images


def by_part(paths: Iterable[Path], root: Path) -> dict[str, list[Path]]:
    """Paths by the part that their folders are named after, ``'train'`` where none is; those of the test part are left
    out."""
    parts: dict[str, list[Path]] = {}
    for path in paths:
        part = part_of(path.parent.relative_to(root).as_posix()) or 'train'
        parts.setdefault(part, []).append(path)
    parts.pop('test', None)
    return parts


def has_near_its_start(path: Path, word: bytes, count: int) -> bool:
    """Whether a regular file has a word in its first ``count`` bytes."""
    try:
        check_regular(path)
    except ValueError:
        return False
    with path.open('rb') as file:
        return word in file.read(count)


def images_by_stem(root: Path) -> dict[str, list[Path]]:
    """The images of a folder by their names without ending."""
    images: dict[str, list[Path]] = {}
    for path in images_in(root):
        images.setdefault(path.stem, []).append(path)
    return images


def note_of_others(root: Path, used: Iterable[Path | None]) -> list[str]:
    """A note of images that have no annotation file: whether they were labelled cannot be told."""
    known = set(used)
    paths = [path for part in by_part(images_in(root), root).values() for path in part]
    others = [path.name for path in paths if path not in known]
    return [f'left out, no annotation file: {listed(others, 5)}'] if others else []


def note_twice(train: Iterable[Path], val: Iterable[Path], notes: list[str]) -> None:
    """Note validation images that are trained on."""
    trained, validated = ({os.path.realpath(path) for path in paths} for paths in (train, val))
    if twice := len(trained & validated):
        notes.append(
            f'{twice} of {len(validated)} validation images are trained on too: scores say little'
        )


def image_of(file: Path, images: Sequence[Path]) -> Path | None:
    """The image that an annotation file is of, among those of its name: the one beside it, else in a folder of the same
    name, else the only one; None if it cannot be told."""
    for near in (
        [image for image in images if image.parent == file.parent],
        [image for image in images if image.parent.name == file.parent.name],
        images,
    ):
        if len(near) == 1:
            return near[0]
    return None
