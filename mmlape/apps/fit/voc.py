"""Pascal VOC's XML files as COCO's dicts."""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from pathlib import Path

from mmlape.apps.inference.reading import IMAGES, is_of_macos, read_bytes, read_text, short

from .contents import MOST_SMALL, CocoContent, are_numbers, check_names
from .folders import IMAGE_FOLDERS
from .sizes import Size, check_voc_sizes


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
        coco = CocoContent(names)
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
            if not name or not are_numbers(box):
                raise ValueError('an object needs a name and four finite numbers')
            found.append((name, box, difficult))
    except (ET.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise ValueError(f'{file} is not an annotation of Pascal VOC: {error!r}') from None
    check_names({name for name, *_ in found}, file)
    return found, (width, height) if width and height else None
