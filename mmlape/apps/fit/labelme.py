"""LabelMe's JSON files, one for each image, as COCO's dicts (AnyLabeling and X-AnyLabeling write the same)."""

from __future__ import annotations

import base64
import io
import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmlape.apps.inference.reading import IMAGES, below, read_text, short
from mmlape.checks import are_numbers
from mmlape.pixels import MOST_PIXELS

from .contents import Annotated, Shape, check_names, coco_of
from .folders import by_part, has_near_its_start, image_of, images_by_stem, note_of_others

_START = 2**16  # bytes in which LabelMe's first entries stand
_CORNERS = 64  # of the polygon for a circle
_WITHOUT_AREA = ('point', 'points', 'line', 'linestrip')


def labelme_files(root: Path) -> list[Path]:
    """JSON files of LabelMe anywhere in the folder."""
    return [
        path
        for path in below(root)[0]
        if path.suffix.lower() == '.json' and has_near_its_start(path, b'"shapes"', _START)
    ]


def read_labelme(root: Path, files: list[Path], notes: list[str]) -> dict[str, Any]:
    """COCO contents of LabelMe's files, by the part that their folders are named after.

    Polygons, circles and masks have masks, rectangles have boxes alone; shapes of one ``group_id`` and label are one
    object. Points and lines are left out, which ``notes`` gets.

    Raises:
        ValueError: If a file is none of LabelMe's, or its image is not found.
    """
    images = images_by_stem(root)
    left_out: Counter[str] = Counter()
    parts = {
        part: [_annotated(path, images, left_out) for path in paths]
        for part, paths in by_part(files, root).items()
    }
    if left_out:
        counts = ', '.join(f'{number} of {kind}' for kind, number in left_out.items())
        notes.append(f'left out, shapes without an area: {counts}')
    notes += note_of_others(root, (each.image for part in parts.values() for each in part))
    return coco_of(parts, root, 'imageWidth and imageHeight', notes)


def _annotated(file: Path, images: Mapping[str, list[Path]], left_out: Counter[str]) -> Annotated:
    """The image of a file with its objects; ``left_out`` counts shapes without an area."""
    try:
        content = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        raise ValueError(f'{file} is not JSON: {error}') from None
    if not isinstance(content, dict) or not isinstance(content.get('shapes'), list):
        raise ValueError(f"{file} is none of LabelMe's: its 'shapes' must be a list")
    try:
        image = _image(file, content.get('imagePath'), images)
    except ValueError as error:
        if content.get('imageData'):
            raise ValueError(
                f"{error}: 'imageData' holds it, and must be written to a file"
            ) from None
        raise
    size = content.get('imageWidth'), content.get('imageHeight')
    objects: dict[Any, list[Mapping[str, Any]]] = {}
    for number, shape in enumerate(content['shapes']):
        if not isinstance(shape, dict) or not isinstance(shape.get('label'), str):
            raise ValueError(f'{file}: an entry of shapes has no label: {short(shape)}')
        if shape.get('shape_type') in _WITHOUT_AREA:
            left_out[shape['shape_type']] += 1
            continue
        group = shape.get('group_id')
        key = number if group is None else (str(group), shape['label'])
        objects.setdefault(key, []).append(shape)
    check_names({shapes[0]['label'] for shapes in objects.values()}, file)
    try:
        found = [_object(shapes, image) for shapes in objects.values()]
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise ValueError(f'{file}: a shape cannot be read: {error!r}') from None
    given = are_numbers(size) and all(size)
    return Annotated(image, found, size if given else None)  # type: ignore[arg-type]


def _image(file: Path, name: Any, images: Mapping[str, list[Path]]) -> Path:
    """The image of a file: at the path that it has, else of that name elsewhere, else of the file's own name."""
    name = str(name or '').replace('\\', '/')  # LabelMe on Windows
    if name and (path := file.parent / name).is_file() and path.suffix.lower() in IMAGES:
        return path
    for stem in dict.fromkeys((Path(name).stem, file.stem)):
        if image := image_of(file, images.get(stem, [])):
            return image
    raise ValueError(
        f'{file}: its image {short(name)} is neither there nor the only one of its name in the folder'
    )


def _object(shapes: list[Mapping[str, Any]], image: Path) -> Shape:
    """One object of the shapes of a group."""
    label = shapes[0]['label']
    masks = [shape for shape in shapes if shape.get('shape_type') == 'mask']
    if masks:
        return _of_pixels(label, masks, image)
    polygons = [_polygon(shape) for shape in shapes]
    xs = [x for polygon in polygons for x in polygon[::2]]
    ys = [y for polygon in polygons for y in polygon[1::2]]
    box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
    boxes_alone = any(shape.get('shape_type') in ('rectangle', 'rotation') for shape in shapes)
    return Shape(label, box, None if boxes_alone else polygons)


def _polygon(shape: Mapping[str, Any]) -> list[float]:
    """The outline of a shape: x, y, x, y ..."""
    points = [(float(x), float(y)) for x, y in shape['points']]
    if not are_numbers((value for point in points for value in point), MOST_PIXELS):
        raise ValueError('a coordinate is not finite')
    kind = shape.get('shape_type') or 'polygon'
    if kind == 'circle':
        (x, y), edge = points  # the centre, and a point on the circle
        radius = math.dist((x, y), edge)
        turns = [2 * math.pi * step / _CORNERS for step in range(_CORNERS)]
        points = [(x + radius * math.cos(turn), y + radius * math.sin(turn)) for turn in turns]
    elif kind not in ('polygon', 'rectangle', 'rotation'):
        raise ValueError(
            f'shape_type must be polygon, rectangle, circle or mask, got {short(kind)}'
        )
    if len(points) < (2 if kind == 'rectangle' else 3):
        raise ValueError(f'a {kind} of {len(points)} points')
    return [value for point in points for value in point]


def _of_pixels(label: str, shapes: list[Mapping[str, Any]], image: Path) -> Shape:
    """An object of masks that LabelMe has as PNG files in text, each within its box."""
    import numpy as np
    from PIL import Image
    from pycocotools import mask

    from .contents import size_of

    width, height = size_of(image)
    pixels = np.zeros((height, width), np.uint8, order='F')
    for shape in shapes:
        if shape.get('shape_type') != 'mask':
            raise ValueError('a group of masks and other shapes')
        (left, top), *_ = ((round(x), round(y)) for x, y in shape['points'])
        part = np.array(Image.open(io.BytesIO(base64.b64decode(shape['mask']))).convert('L')) > 0
        if left < 0 or top < 0:
            raise ValueError(f'a mask begins outside of the image, at {left}, {top}')
        place = pixels[top : top + part.shape[0], left : left + part.shape[1]]
        place |= part[: place.shape[0], : place.shape[1]]
    runs = mask.encode(pixels)
    box = [float(value) for value in mask.toBbox(runs)]
    return Shape(
        label, box, dict(runs, counts=runs['counts'].decode()), area=float(mask.area(runs))
    )
