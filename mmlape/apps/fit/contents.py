"""COCO's dicts from annotations in other formats, and what a name and a number in them may be."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from mmlape.apps.inference.reading import check_regular, short
from mmlape.pixels import ARRAYS, TIFFS, read_pixels

# Far above real data: pixels of a coordinate; characters of a class name; bytes of a small file.
_MOST_PIXELS, _MOST_LETTERS = 1e9, 1000
MOST_SMALL = 2**24
_UNPRINTABLE = (
    'Cc',
    'Cs',
    'Zl',
    'Zp',
)  # Unicode's categories: control characters, surrogates, line breaks


def are_numbers(values: Iterable[Any], most: float = _MOST_PIXELS) -> bool:
    """Whether all are finite numbers, of at most ``most``."""
    return all(
        isinstance(value, (int, float)) and -most <= value <= most and abs(value) != math.inf
        for value in values
    )


def check_names(names: Iterable[Any], where: object) -> tuple[str, ...]:
    """Names of classes, as they are.

    Raises:
        ValueError: If one cannot be printed in a line, and written to any file; ``where`` is where they come from.
    """
    names = tuple(names)
    for name in names:
        if not isinstance(name, str):
            raise ValueError(f'{where}: the name of a category must be a text, got {short(name)}')
        if not name.strip() or len(name) > _MOST_LETTERS:
            raise ValueError(
                f'{where}: the name of a class must have 1 to {_MOST_LETTERS} characters, got {short(name)}'
            )
        if not name.isprintable() and any(unicodedata.category(c) in _UNPRINTABLE for c in name):
            raise ValueError(
                f'{where}: the name of a class must have no control character, line break or surrogate, '
                f'got {short(name)}'
            )
    return names


def _area(polygon: list[float]) -> float:
    """Compute the area by Gauss's formula."""
    x, y = polygon[::2], polygon[1::2]
    return abs(sum(x[n - 1] * y[n] - x[n] * y[n - 1] for n in range(len(x)))) / 2


def size_of(image: Path) -> tuple[int, int]:
    """Width and height of an image as upstream reads it, turned as its EXIF data say."""
    from mmlape.training.data_sizes import TURNED

    if image.suffix.lower() in (*ARRAYS, *TIFFS):
        height, width = read_pixels(image).shape[:2]
        return width, height
    try:
        with Image.open(image) as opened:
            turned = opened.getexif().get(0x0112) in TURNED
            return opened.size[::-1] if turned else opened.size
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise ValueError(f'{image} cannot be read: {error}') from None


class CocoContent:
    """Collects a COCO content."""

    def __init__(self, names: list[str]) -> None:
        categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
        self.content: dict[str, list[dict[str, Any]]] = dict(
            images=[], annotations=[], categories=categories
        )

    def add(self, image: Path, folder: Path, boxes: Any) -> None:
        """An image with its boxes and polygons as shares of it."""
        check_regular(image)
        width, height = size_of(image)
        if not width or not height:
            raise ValueError(f'{image} has no pixels: it is {width} x {height}')
        path, top = image.absolute(), folder.absolute()
        path = path.relative_to(top) if path.is_relative_to(top) else path
        entry = dict(
            id=len(self.content['images']) + 1,
            file_name=path.as_posix(),
            width=width,
            height=height,
        )
        self.content['images'].append(entry)
        for label, box, polygon in boxes:
            scale = (width, height)
            self.box(
                label,
                [share * scale[index % 2] for index, share in enumerate(box)],
                [share * scale[index % 2] for index, share in enumerate(polygon)],
            )

    def box(self, label: int, box: list[float], polygon: list[float], iscrowd: int = 0) -> None:
        """A box of the last image, in pixels."""
        entry = dict(
            id=len(self.content['annotations']) + 1, image_id=len(self.content['images']),
            category_id=label + 1, bbox=box, area=box[2] * box[3], iscrowd=iscrowd,
        )  # fmt: skip
        if polygon:
            entry.update(segmentation=[polygon], area=_area(polygon))
        self.content['annotations'].append(entry)
