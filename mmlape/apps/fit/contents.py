"""COCO's dicts from annotations in other formats, and what a name and a number in them may be."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from mmlape.apps.inference.reading import check_regular, short
from mmlape.pixels import ARRAYS, TIFFS, read_pixels

from .sizes import Size, check_sizes

# Far above real data: characters of a class name; bytes of a small file.
_MOST_LETTERS = 1000
MOST_SMALL = 2**24
_UNPRINTABLE = (
    'Cc',
    'Cs',
    'Zl',
    'Zp',
)  # Unicode's categories: control characters, surrogates, line breaks


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


class Shape(NamedTuple):
    """An object in an image.

    Attributes:
        name: Of its class.
        box: Left, top, width and height, in pixels.
        masks: Polygons in pixels, or COCO's run lengths; None without a mask.
        area: Of the mask, in pixels; None: that of the polygons or the box.
        iscrowd: Whether it is neither trained on nor a wrong prediction.
    """

    name: str
    box: list[float]
    masks: list[list[float]] | Mapping[str, Any] | None = None
    area: float | None = None
    iscrowd: bool = False


class Annotated(NamedTuple):
    """An image with what an annotation file says: its objects, and its size, None if that is missing."""

    image: Path
    shapes: Sequence[Shape]
    size: Size | None


def coco_of(
    parts: Mapping[str, Sequence[Annotated]], folder: Path, where: str, notes: list[str]
) -> dict[str, tuple[dict, Path, None]]:
    """COCO contents of images with annotation files, by part, with the folder that the images are seen from.

    Args:
        parts: Images with their objects, by part.
        folder: That folder.
        where: The entry that has sizes of images, for messages.
        notes: Gets what a user should know.

    Raises:
        ValueError: If most sizes are not those of the images.
    """
    everything = [each for part in parts.values() for each in part]
    names = sorted({shape.name for each in everything for shape in each.shapes})
    labels = {name: label for label, name in enumerate(names)}
    contents: dict[str, tuple[dict, Path, None]] = {}
    real: dict[Path, Size] = {}
    for part, images in parts.items():
        coco = CocoContent(names)
        for image, shapes, _ in images:
            real[image] = coco.add(image, folder)
            for shape in shapes:
                coco.box(labels[shape.name], *shape[1:])
        contents[part] = coco.content, folder, None
    notes += check_sizes({each.image: each.size for each in everything if each.size}, real, where)
    return contents


class CocoContent:
    """Collects a COCO content."""

    def __init__(self, names: Sequence[str]) -> None:
        categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
        self.content: dict[str, list[dict[str, Any]]] = dict(
            images=[], annotations=[], categories=categories
        )

    def add(self, image: Path, folder: Path) -> tuple[int, int]:
        """Add an image, seen from the folder; returns its width and height."""
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
        return width, height

    def box(
        self,
        label: int,
        box: list[float],
        masks: Any = None,
        area: float | None = None,
        iscrowd: bool = False,
    ) -> None:
        """Add an object of the last image, as in :class:`Shape`."""
        if area is None:
            area = sum(map(_area, masks)) if masks else box[2] * box[3]
        entry = dict(
            id=len(self.content['annotations']) + 1, image_id=len(self.content['images']),
            category_id=label + 1, bbox=box, area=area, iscrowd=int(iscrowd),
        )  # fmt: skip
        self.content['annotations'].append(entry | (dict(segmentation=masks) if masks else {}))
