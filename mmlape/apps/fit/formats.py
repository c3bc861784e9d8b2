"""Formats of own data: YOLO and Pascal VOC as COCO's dicts, folders of label maps, and names of parts."""

from __future__ import annotations

import math
import os
import re
import unicodedata
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from mmlape.apps.inference.reading import (
    IMAGES,
    below,
    check_regular,
    is_of_macos,
    read_bytes,
    read_text,
    short,
)
from mmlape.pixels import ARRAYS, TIFFS, read_pixels

from .sizes import Size, check_voc_sizes

PARTS = dict(train=('train', 'training'), val=('val', 'valid', 'validation'), test=('test',))
IMAGE_FOLDERS = ('images', 'image', 'imgs', 'img', 'JPEGImages')
_MAP_FOLDERS = (
    'annotations',
    'masks',
    'mask',
    'labels',
    'label',
    'label_maps',
    'SegmentationClass',
)
# Far above real data: pixels of a coordinate, or shares of the image; characters of a class name; bytes
# of a YAML or XML file; levels of YAML, and values with those of aliases.
_MOST_PIXELS, _MOST_SHARE, _MOST_LETTERS = 1e9, 1e4, 1000
_MOST_SMALL, _MOST_LEVELS, _MOST_VALUES = 2**24, 50, 10**6
_UNPRINTABLE = (
    'Cc',
    'Cs',
    'Zl',
    'Zp',
)  # Unicode's categories: control characters, surrogates, line breaks
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)  # in Python, 70,000 names take a minute


def part_of(text: str) -> str | None:
    """The part that a name or path is of: ``'train'``, ``'val'``, ``'test'`` or None."""
    words = re.findall('[a-z]+', text.lower())
    return next((part for part, names in PARTS.items() if set(names) & set(words)), None)


def read_label_maps(root: Path) -> dict[str, tuple[Path, Path]]:
    """Folders of images and of label maps, by ``'train'`` and ``'val'``; {} if there are none."""
    parts = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if (part := part_of(folder.name)) and (pair := _pair(folder)):
            parts[part] = pair
    if not parts and (pair := _pair(root)):
        images, maps = pair
        below = {part_of(path.name): path for path in images.iterdir() if path.is_dir()}
        inside = {part: (path, maps / path.name) for part, path in below.items() if part}
        parts = {part: pair for part, pair in inside.items() if pair[1].is_dir()} or {'train': pair}
    parts.pop('test', None)
    return {part: pair for part, pair in parts.items() if all(map(_has_images, pair))}


def _pair(folder: Path) -> tuple[Path, Path] | None:
    """The image folder and the folder of label maps in a folder."""
    images, maps = (
        next((path for name in names if _has_images(path := folder / name)), None)
        for names in (IMAGE_FOLDERS, _MAP_FOLDERS)
    )
    return (images, maps) if images and maps else None


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGES for path in below(folder)[0])


def images_in(folder: Path) -> list[Path]:
    """The images of a folder, searched to the bottom, through links too, in order.

    Raises:
        ValueError: If one of them is a named pipe, a device or a link to nothing.
    """
    images = [path for path in below(folder)[0] if path.suffix.lower() in IMAGES]
    for path in images:
        check_regular(path)
    return images


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


def _yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ValueError: If it cannot be read, or has too many levels, or aliases that make it too large.
    """
    text = read_text(path, _MOST_SMALL)
    try:
        # libyaml would crash with many levels.
        _check_yaml(yaml.parse(text, Loader=_LOADER))
        return yaml.load(text, Loader=_LOADER)  # the safe loader
    except yaml.YAMLError as error:
        mark = getattr(error, 'problem_mark', None)
        place = f', line {mark.line + 1}' if mark else ''
        problem = getattr(error, 'problem', None) or getattr(error, 'reason', '')
        raise ValueError(f'{path} is not YAML{place}: {problem}') from None
    except (ValueError, TypeError, OverflowError) as error:  # such as the date 2001-99-99
        raise ValueError(f'{path} cannot be read: {error}') from None


def _check_yaml(events: Iterable[Any]) -> None:
    """Refuse (ValueError) many levels, and aliases of aliases, which are short and stand for billions of values."""
    sizes: dict[str, int] = {}  # of what aliases stand for
    begun: list[list[Any]] = [
        [None, 0]
    ]  # anchors and sizes of lists and dicts that are not ended yet
    for event in events:
        if isinstance(event, yaml.CollectionStartEvent):
            begun.append([event.anchor, 1])
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = begun.pop()
            sizes[anchor] = size
            begun[-1][1] += size
        elif isinstance(event, yaml.AliasEvent):
            # An alias of a text or number is one value; a list inside of itself has no end.
            inside = any(event.anchor == anchor for anchor, _ in begun)
            begun[-1][1] += _MOST_VALUES if inside else sizes.get(event.anchor, 1)
        elif isinstance(event, yaml.ScalarEvent):
            sizes.pop(event.anchor, None)
            begun[-1][1] += 1
        if len(begun) > _MOST_LEVELS or begun[-1][1] >= _MOST_VALUES:
            raise ValueError(
                f'more than {_MOST_LEVELS} levels of lists, or {_MOST_VALUES} values with those of aliases'
            )


def _yaml_of(root: Path, unread: list[str] | None = None) -> tuple[Path, dict] | None:
    """The YAML file of a YOLO data set, and its content; see :func:`is_yolo`."""
    for path in sorted([*root.glob('*.yaml'), *root.glob('*.yml')]):
        if path.is_dir() or is_of_macos(path.name):
            continue
        try:
            content = _yaml(path)
        except ValueError as error:
            if unread is not None:
                unread.append(str(error))
            continue
        if isinstance(content, dict) and content.get('names') and content.get('train'):
            return path, content
    return None


def is_yolo(root: Path, unread: list[str] | None = None) -> bool:
    """Whether the folder has a YAML file with ``names`` and ``train``; ``unread`` gets the reasons why some file cannot
    be read."""
    return _yaml_of(root, unread) is not None


def read_yolo(root: Path) -> dict[str, tuple[dict, Path, None]]:
    """COCO contents of the parts of a YOLO data set, with the folder that their images are seen from."""
    file, content = _yaml_of(root)  # type: ignore[misc]
    if 'kpt_shape' in content:
        raise ValueError(
            f'{file} is of keypoints, which are not trained: labels must be boxes or polygons'
        )
    names = _names_of(content['names'], file)
    parts = {}
    train: set[Path] = set()
    for part in ('train', 'val'):
        places = content.get(part) or []
        places = places if isinstance(places, list) else [places]
        top = content.get('path') or ''
        if not all(isinstance(place, str) for place in (top, *places)):
            raise ValueError(
                f'{file}: path must be a folder, {part} a folder or file or a list of them'
            )
        images: list[Path] = []
        for place in places:
            images += _yolo_images(root, top, place)
        if part == 'val' and set(images) == train:
            continue  # not a validation part
        train = set(images)
        if images:
            coco = _Coco(names)
            for path in sorted(set(images)):
                coco.add(path, root, _yolo_boxes(path, len(names)))
            parts[part] = coco.content, root, None
    if 'train' not in parts:
        raise ValueError(f'{file}: no image is in train: {short(content["train"])}')
    return parts


def _names_of(names: Any, file: Path | None) -> list[str]:
    """Class names in the order of their numbers."""
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list):
        raise ValueError(f'{file}: names must be a list, or numbers from 0 with a name each')
    # YAML reads 7 and no as a number and False. A list in it may be as large as it likes.
    texts = [str(name) if isinstance(name, (bool, int, float)) else name for name in names]
    return list(check_names(texts, file))


def _yolo_images(root: Path, top: str, place: str) -> list[Path]:
    """Images of a folder, or of a list of files, that a YOLO file names."""
    # Roboflow's files say ../train/images for what is in the folder itself.
    tries = [root / top / place, root / place, root / place.removeprefix('../')]
    found = next((path for path in tries if os.path.exists(path)), None)
    if found is None:
        raise ValueError(f'{root}: there is no {short(place)}, which the YAML file names')
    if found.is_dir():
        if found.resolve() in root.resolve().parents:  # to search `/` takes hours
            raise ValueError(
                f'{root}: the YAML file names {short(place)}, which is not below the folder'
            )
        return images_in(found)
    lines = [line.strip() for line in read_text(found).splitlines() if line.strip()]
    paths = [Path(line) if os.path.isfile(line) else found.parent / line for line in lines]
    missing = [str(path)[:200] for path in paths if not os.path.isfile(path)]
    if missing:
        raise ValueError(f'{len(missing)} images of {found} are missing: {", ".join(missing[:5])}')
    return paths


def _yolo_boxes(image: Path, count: int) -> Iterator[tuple[int, list[float], list[float]]]:
    """Class, box and polygon (both as shares of the image) of the lines beside an image; none without a file."""
    folders = list(image.absolute().parent.parts)
    if 'images' in folders:
        folders[len(folders) - 1 - folders[::-1].index('images')] = 'labels'
    file = Path(*folders, f'{image.stem}.txt')
    lines = read_text(file).splitlines() if os.path.exists(file) else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            label: int | str
            label, *values = line.split()
            shares = [float(value) for value in values]
            if len(shares) != 4 and (len(shares) < 6 or len(shares) % 2):
                raise ValueError('expected a class and 4 numbers, or a polygon')
            if not are_numbers(shares, _MOST_SHARE):
                raise ValueError(f'a number is not finite, or above {_MOST_SHARE:g}')
            # A table of floats has 1.0 for 1.
            label = int(float(label)) if float(label).is_integer() else int(label)
            if not 0 <= label < count:
                raise ValueError(f'there are {count} names')
        except ValueError as error:
            raise ValueError(f'{file}, line {number}: {line.strip()[:60]!r}: {error}') from None
        if len(shares) == 4:
            x, y, width, height = shares
            yield int(label), [x - width / 2, y - height / 2, width, height], []
        else:
            xs, ys = shares[::2], shares[1::2]
            box = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            yield int(label), box, shares


def read_voc(root: Path, notes: list[str]) -> dict[str, tuple[dict, Path, None]]:
    """COCO contents of the parts of a Pascal VOC data set, with the folder that their images are seen from; ``notes``
    gets what a user should know."""
    images = next(filter(Path.is_dir, (root / name for name in IMAGE_FOLDERS)), None)
    if images is None:
        raise ValueError(f'{root} has Annotations and no JPEGImages')
    stems = {path.stem for path in root.glob('Annotations/*.xml') if not is_of_macos(path.name)}
    listed = {
        part: root / f'ImageSets/Main/{part}.txt' for part in ('train', 'val', 'trainval', 'test')
    }
    sets: dict[str, set[str]] = {
        # A name may be followed by a mark, and may have spaces itself.
        part: {
            line.strip() if line.strip() in stems else line.split()[0]
            for line in read_text(path).splitlines()
            if line.strip()
        }
        for part, path in listed.items()
        if os.path.exists(path)
    }
    both, test = sets.pop('trainval', stems), sets.pop('test', set())
    sets.setdefault('train', both - sets.get('val', set()) - test)
    objects = {
        stem: _voc_objects(root / 'Annotations' / f'{stem}.xml')
        for stem in set().union(*sets.values())
    }
    names = sorted({name for found, _ in objects.values() for name, *_ in found})
    labels = {name: label for label, name in enumerate(names)}
    files = {
        path.stem: path
        for path in images.iterdir()
        if path.suffix.lower() in IMAGES and not is_of_macos(path.name)
    }
    parts = {}
    said: dict[Path, Size] = {}
    real: dict[Path, Size] = {}
    for part, wanted in sets.items():
        coco = _Coco(names)
        for stem in sorted(wanted):
            if stem not in files:
                raise ValueError(f'{images} has no image {short(stem)}, which {part} has')
            coco.add(files[stem], images, [])
            found, size = objects[stem]
            for name, box, difficult in found:
                coco.box(labels[name], box, [], iscrowd=int(difficult))
            entry = coco.content['images'][-1]
            real[files[stem]] = entry['width'], entry['height']
            if size is not None:
                said[files[stem]] = size
        parts[part] = coco.content, images, None
    notes += check_voc_sizes(said, real)
    return parts


def _voc_objects(file: Path) -> tuple[list[tuple[str, list[float], bool]], Size | None]:
    """Names, boxes in pixels, and whether they are marked difficult; width and height of the image, None if they are
    missing or 0."""
    text = read_bytes(file, _MOST_SMALL)
    # Without zero bytes: in UTF-16 the words would not be found.
    if b'\0' in text or b'<!DOCTYPE' in text or b'<!ENTITY' in text:
        raise ValueError(
            f'{file} declares a document type, or is UTF-16, which no annotation needs'
        )
    try:
        found = []
        tree = ET.fromstring(text)
        width, height = (float(tree.findtext(f'size/{side}') or 0) for side in ('width', 'height'))
        for entry in tree.iter('object'):
            corners = {
                corner.tag: float(corner.text or '') for corner in entry.find('bndbox') or ()
            }
            # Corners are pixels from 1 on, both inside.
            x, y = corners['xmin'] - 1, corners['ymin'] - 1
            box = [x, y, corners['xmax'] - x, corners['ymax'] - y]
            difficult = entry.findtext('difficult', '0').strip() == '1'
            name = entry.findtext('name', '').strip()
            if not name or not are_numbers(box):
                raise ValueError('an object needs a name and four finite numbers')
            found.append((name, box, difficult))
    except (ET.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f'{file} is not an annotation of Pascal VOC: {error!r}') from None
    check_names({name for name, *_ in found}, file)
    return found, (width, height) if width and height else None


def _area(polygon: list[float]) -> float:
    """Compute the area by Gauss's formula."""
    x, y = polygon[::2], polygon[1::2]
    return abs(sum(x[n - 1] * y[n] - x[n] * y[n - 1] for n in range(len(x)))) / 2


def _size_of(image: Path) -> tuple[int, int]:
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


class _Coco:
    """Collects a COCO content."""

    def __init__(self, names: list[str]) -> None:
        categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
        self.content: dict[str, list[dict[str, Any]]] = dict(
            images=[], annotations=[], categories=categories
        )

    def add(self, image: Path, folder: Path, boxes: Any) -> None:
        """An image with its boxes and polygons as shares of it."""
        check_regular(image)
        width, height = _size_of(image)
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
