"""XML files of Pascal VOC, in its folders or beside images, as COCO's dicts."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmlape.apps.inference.reading import (
    IMAGES,
    below,
    is_of_macos,
    read_bytes,
    read_text,
    short,
)
from mmlape.checks import are_numbers
from mmlape.pixels import MOST_PIXELS

from .contents import MOST_SMALL, Annotated, Shape, check_names, coco_of
from .folders import (
    IMAGE_FOLDERS,
    by_part,
    has_near_its_start,
    image_of,
    images_by_stem,
    note_of_others,
)
from .sizes import Size

_START = 4096  # bytes in which the first element of an XML file stands


def read_voc(root: Path, notes: list[str]) -> dict[str, Any]:
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
    files = {
        path.stem: path
        for path in images.iterdir()
        if path.suffix.lower() in IMAGES and not is_of_macos(path.name)
    }
    parts = {}
    for part, wanted in sets.items():
        if missing := sorted(wanted - files.keys()):
            raise ValueError(f'{images} has no image {short(missing[0])}, which {part} has')
        parts[part] = _annotated(
            (root / 'Annotations' / f'{stem}.xml', files[stem]) for stem in sorted(wanted)
        )
    return coco_of(parts, images, '<size> in Annotations', notes)


def xml_files(root: Path) -> dict[Path, Path | None]:
    """Annotation files of Pascal VOC anywhere in the folder, with their images; {} if none has one."""
    files, _ = below(root)
    found = [
        path
        for path in files
        if path.suffix.lower() == '.xml' and has_near_its_start(path, b'<annotation', _START)
    ]
    images = images_by_stem(root) if found else {}
    pairs = {path: image_of(path, images.get(path.stem, [])) for path in found}
    return pairs if any(pairs.values()) else {}


def read_xml_files(root: Path, files: dict[Path, Path | None], notes: list[str]) -> dict[str, Any]:
    """COCO contents of annotation files and their images, by the part that their folders are named after.

    Raises:
        ValueError: If a file has no image.
    """
    without = [path.relative_to(root).as_posix() for path, image in files.items() if not image]
    if without:
        raise ValueError(
            f'{len(without)} of {len(files)} annotation files in {root} have no image of their name beside them or in '
            f'one other folder: {", ".join(map(short, without[:5]))}'
        )
    parts = {
        part: _annotated((path, files[path]) for path in paths)
        for part, paths in by_part(files, root).items()
    }
    notes += note_of_others(root, files.values())
    return coco_of(parts, root, '<size>', notes)


def _annotated(pairs: Iterable[tuple[Path, Any]]) -> list[Annotated]:
    return [Annotated(image, *_objects(file)) for file, image in pairs]


def _objects(file: Path) -> tuple[list[Shape], Size | None]:
    """The objects of an annotation file; width and height of the image, None if they are missing or 0."""
    text = read_bytes(file, MOST_SMALL)
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
            if not name or not are_numbers(box, MOST_PIXELS):
                raise ValueError('an object needs a name and four finite numbers')
            found.append(Shape(name, box, iscrowd=difficult))
    except (ET.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f'{file} is not an annotation of Pascal VOC: {error!r}') from None
    check_names({shape.name for shape in found}, file)
    return found, (width, height) if width and height else None
