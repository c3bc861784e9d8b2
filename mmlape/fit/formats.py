"""Formats of own data: YOLO and Pascal VOC as COCO's dicts, folders of label maps, and names of parts."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp')
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
_TURNED = (5, 6, 7, 8)  # values of EXIF's orientation with width and height exchanged


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
    return any(path.suffix.lower() in IMAGES for path in folder.rglob('*'))


def _yaml_of(root: Path) -> Path | None:
    """The YAML file of a YOLO data set."""
    for path in sorted([*root.glob('*.yaml'), *root.glob('*.yml')]):
        try:
            content = yaml.safe_load(path.read_text(encoding='utf-8'))
        except (yaml.YAMLError, UnicodeDecodeError):
            continue
        if isinstance(content, dict) and content.get('names') and content.get('train'):
            return path
    return None


def is_yolo(root: Path) -> bool:
    """Whether the folder has a YAML file with ``names`` and ``train``."""
    return _yaml_of(root) is not None


def read_yolo(root: Path) -> dict[str, tuple[dict, Path, None]]:
    """COCO contents of the parts of a YOLO data set, with the folder that their images are seen from."""
    file = _yaml_of(root)
    content = yaml.safe_load(file.read_text(encoding='utf-8'))  # type: ignore[union-attr]
    if 'kpt_shape' in content:
        raise ValueError(
            f'{file} is of keypoints, which are not trained: labels must be boxes or polygons'
        )
    names = _names_of(content['names'], file)
    parts = {}
    train: set[Path] = set()
    for part in ('train', 'val'):
        places = content.get(part) or []
        images: list[Path] = []
        for place in [places] if isinstance(places, str) else places:
            images += _yolo_images(root, content.get('path') or '', str(place))
        if part == 'val' and set(images) == train:
            continue  # not a validation part
        train = set(images)
        if images:
            coco = _Coco(names)
            for path in sorted(set(images)):
                coco.add(path, root, _yolo_boxes(path, len(names)))
            parts[part] = coco.content, root, None
    if 'train' not in parts:
        raise ValueError(f'{file}: no image is in train: {content["train"]!r}')
    return parts


def _names_of(names: Any, file: Path | None) -> list[str]:
    """Class names in the order of their numbers."""
    if isinstance(names, list):
        return list(map(str, names))
    if not isinstance(names, dict) or set(names) != set(range(len(names))):
        raise ValueError(f'{file}: names must be a list, or numbers from 0 with a name each')
    return [str(names[number]) for number in range(len(names))]


def _yolo_images(root: Path, top: str, place: str) -> list[Path]:
    """Images of a folder, or of a list of files, that a YOLO file names."""
    # Roboflow's files say ../train/images for what is in the folder itself.
    tries = [root / top / place, root / place, root / place.removeprefix('../')]
    found = next((path for path in tries if path.exists()), None)
    if found is None:
        raise ValueError(f'{root}: there is no {place!r}, which the YAML file names')
    if found.is_dir():
        return [path for path in found.rglob('*') if path.suffix.lower() in IMAGES]
    lines = [
        line.strip() for line in found.read_text(encoding='utf-8').splitlines() if line.strip()
    ]
    paths = [Path(line) if Path(line).is_file() else found.parent / line for line in lines]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise ValueError(f'{len(missing)} images of {found} are missing: {", ".join(missing[:5])}')
    return paths


def _yolo_boxes(image: Path, count: int) -> Iterator[tuple[int, list[float], list[float]]]:
    """Class, box and polygon (both as shares of the image) of the lines beside an image; none without a file."""
    folders = list(image.absolute().parent.parts)
    if 'images' in folders:
        folders[len(folders) - 1 - folders[::-1].index('images')] = 'labels'
    file = Path(*folders, f'{image.stem}.txt')
    lines = file.read_text(encoding='utf-8').splitlines() if file.is_file() else []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            label, *values = line.split()
            shares = [float(value) for value in values]
            if len(shares) != 4 and (len(shares) < 6 or len(shares) % 2):
                raise ValueError('expected a class and 4 numbers, or a polygon')
            if not all(map(math.isfinite, shares)):
                raise ValueError('a number is not finite')
            if not 0 <= int(label) < count:
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


def read_voc(root: Path) -> dict[str, tuple[dict, Path, None]]:
    """COCO contents of the parts of a Pascal VOC data set, with the folder that their images are seen from."""
    images = next(filter(Path.is_dir, (root / name for name in IMAGE_FOLDERS)), None)
    if images is None:
        raise ValueError(f'{root} has Annotations and no JPEGImages')
    stems = {path.stem for path in root.glob('Annotations/*.xml')}
    listed = {
        part: root / f'ImageSets/Main/{part}.txt' for part in ('train', 'val', 'trainval', 'test')
    }
    sets: dict[str, set[str]] = {
        # A name may be followed by a mark, and may have spaces itself.
        part: {
            line.strip() if line.strip() in stems else line.split()[0]
            for line in path.read_text().splitlines()
            if line.strip()
        }
        for part, path in listed.items()
        if path.is_file()
    }
    both, test = sets.pop('trainval', stems), sets.pop('test', set())
    sets.setdefault('train', both - sets.get('val', set()) - test)
    objects = {
        stem: _voc_objects(root / 'Annotations' / f'{stem}.xml')
        for stem in set().union(*sets.values())
    }
    names = sorted({name for found in objects.values() for name, *_ in found})
    files = {path.stem: path for path in images.iterdir() if path.suffix.lower() in IMAGES}
    parts = {}
    for part, wanted in sets.items():
        coco = _Coco(names)
        for stem in sorted(wanted):
            if stem not in files:
                raise ValueError(f'{images} has no image {stem!r}, which {part} has')
            coco.add(files[stem], images, [])
            for name, box, difficult in objects[stem]:
                coco.box(names.index(name), box, [], iscrowd=int(difficult))
        parts[part] = coco.content, images, None
    return parts


def _voc_objects(file: Path) -> list[tuple[str, list[float], bool]]:
    """Names, boxes in pixels, and whether they are marked difficult."""
    if not file.is_file():
        raise ValueError(f'there is no {file}')
    text = file.read_bytes()
    # Without zero bytes: in UTF-16 the words would not be found.
    if b'\0' in text or b'<!DOCTYPE' in text or b'<!ENTITY' in text:
        raise ValueError(
            f'{file} declares a document type, or is UTF-16, which no annotation needs'
        )
    try:
        found = []
        for entry in ET.fromstring(text).iter('object'):
            corners = {
                corner.tag: float(corner.text or '') for corner in entry.find('bndbox') or ()
            }
            # Corners are pixels from 1 on, both inside.
            x, y = corners['xmin'] - 1, corners['ymin'] - 1
            box = [x, y, corners['xmax'] - x, corners['ymax'] - y]
            difficult = entry.findtext('difficult', '0').strip() == '1'
            name = entry.findtext('name', '').strip()
            if not name or not all(map(math.isfinite, box)):
                raise ValueError('an object needs a name and four finite numbers')
            found.append((name, box, difficult))
        return found
    except (ET.ParseError, ValueError, KeyError) as error:
        raise ValueError(f'{file} is not an annotation of Pascal VOC: {error!r}') from None


def _area(polygon: list[float]) -> float:
    """By Gauss's formula."""
    x, y = polygon[::2], polygon[1::2]
    return abs(sum(x[n - 1] * y[n] - x[n] * y[n - 1] for n in range(len(x)))) / 2


class _Coco:
    """Collects a COCO content."""

    def __init__(self, names: list[str]) -> None:
        categories = [dict(id=number, name=name) for number, name in enumerate(names, 1)]
        self.content: dict[str, list[dict[str, Any]]] = dict(
            images=[], annotations=[], categories=categories
        )

    def add(self, image: Path, folder: Path, boxes: Any) -> None:
        """An image with its boxes and polygons as shares of it."""
        try:
            with Image.open(image) as opened:
                width, height = opened.size
                if opened.getexif().get(0x0112) in _TURNED:
                    width, height = height, width
        except (OSError, Image.DecompressionBombError) as error:
            raise ValueError(f'{image} cannot be read: {error}') from None
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
