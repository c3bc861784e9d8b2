"""Folders of own data: what their names say, and the images in them."""

from __future__ import annotations

import re
from pathlib import Path

from mmlape.apps.inference.reading import IMAGES, below, check_regular

PARTS = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test',))
IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'JPEGImages')


def part_of(text: str) -> str | None:
    """The part that a name or path is of: ``'train'``, ``'val'``, ``'test'`` or None."""
    words = re.findall('[a-z]+', text.lower())
    return next((part for part, names in PARTS.items() if set(names) & set(words)), None)


def images_in(folder: Path) -> list[Path]:
    """The images of a folder, searched to the bottom, through links too, in order.

    Raises:
        ValueError: If one of them is a named pipe, a device or a link to nothing.
    """
    images = [path for path in below(folder)[0] if path.suffix.lower() in IMAGES]
    for path in images:
        check_regular(path)
    return images
