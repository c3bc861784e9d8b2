"""Where images and label maps are: a reader for each layout of folders.

A reader looks at names only, and returns what reads the parts: the folder may also hold data of another format.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from mmlape.apps.inference.reading import IMAGES, below, read_text, short
from mmlape.checkpoints.report import listed

from .folders import IMAGE_FOLDERS, by_part, images_in, part_of

_IMAGE_FOLDERS = (*IMAGE_FOLDERS, 'img_dir', '701_StillsRaw_full')
_VOC_FOLDERS = ('SegmentationClass', 'SegmentationClassPNG')
_MAP_FOLDERS = (
    'annotations',
    'masks',
    'mask',
    'labels',
    'label',
    'label_maps',
    'ann_dir',
    'LabeledApproved_full',
    *_VOC_FOLDERS,
)
_WORDS = 'masks?|labels?|labelmap|seg|segmentation|gt|annotations?'
_TAIL = re.compile(rf'[ _.-]({_WORDS})$', re.I)  # of a label map beside its image
_SIBLING = re.compile(rf'(.+?)[ _.-]?(annot|{_WORDS})', re.I)  # a folder beside that of the images
_CITYSCAPES_IMAGE = '_leftImg8bit'
_CITYSCAPES_MAPS = ('_gtFine_labelTrainIds', '_gtFine_labelIds')  # the first ones are preferred
_MOST = 5  # names in a message


class MapPart(NamedTuple):
    """Images of a part with their label maps.

    Attributes:
        images, maps: Folders.
        pairs: Image and label map by the name of the image in ``images``, without its ending.
    """

    images: Path
    maps: Path
    pairs: Mapping[str, tuple[Path, Path]]


# Reads the parts by their names; the list gets notes for the user.
_ReadParts = Callable[[list[str]], dict[str, MapPart]]


class MapLayout(NamedTuple):
    """Images and label maps that were found.

    Attributes:
        root: The folder, or the only one in it.
        read: Reads the parts, ``'train'`` and ``'val'``; its argument gets notes for the user.
    """

    root: Path
    read: _ReadParts


def find_map_layout(root: Path) -> MapLayout | None:
    """The layout of a folder of images and label maps, or of the only folder in it; None if it has none."""
    inner = [path for path in root.iterdir() if path.is_dir() and path.name[0] not in '._']
    for folder in (root, *inner) if len(inner) == 1 else (root,):
        for find in (_cityscapes, _image_sets, _two_folders, _sibling_folders, _beside_images):
            if read := find(folder):
                return MapLayout(folder, read)
    return None


def where_maps_are_looked_for(image: Path) -> str:
    """The folders and names, for a folder in which there were none."""
    return (
        f'label maps are looked for in {", ".join(_MAP_FOLDERS[:5])} ... beside a folder images, in NAME_masks or '
        f'NAME_labels beside a folder NAME, and beside the images, as {image.stem}_mask.png'
    )


def _cityscapes(root: Path) -> _ReadParts | None:
    """``leftImg8bit/PART/CITY/X_leftImg8bit.png`` and ``gtFine/PART/CITY/X_gtFine_labelIds.png``; each archive may
    have been unpacked into a folder of its own."""
    images, maps = (
        next((path for depth in ('', '*/') for path in sorted(root.glob(depth + name)) if path.is_dir()), None)
        for name in ('leftImg8bit', 'gtFine')
    )  # fmt: skip
    return partial(_cityscapes_parts, images, maps) if images and maps else None


def _cityscapes_parts(images: Path, maps: Path, notes: list[str]) -> dict[str, MapPart]:
    found = _by_name(images_in(maps), maps)
    files = {
        name.removesuffix(_CITYSCAPES_IMAGE): path
        for name, path in _by_name(images_in(images), images).items()
        if name.endswith(_CITYSCAPES_IMAGE)
    }
    counts = {tail: sum(name + tail in found for name in files) for tail in _CITYSCAPES_MAPS}
    tail = max(counts, key=lambda tail: counts[tail])
    if not counts[tail]:
        raise ValueError(
            f'{maps} has no label map of an image in {images}: X{_CITYSCAPES_IMAGE}.png needs '
            f'X{_CITYSCAPES_MAPS[0]}.png or X{_CITYSCAPES_MAPS[1]}.png'
        )
    names = {path: name for name, path in files.items()}
    parts = {
        part: [names[path] for path in paths] for part, paths in by_part(names, images).items()
    }
    return _with_maps(images, maps, parts, files, found, tail, notes)


def _image_sets(root: Path) -> _ReadParts | None:
    """``JPEGImages``, ``SegmentationClass`` and lists of names in ``ImageSets/Segmentation``: Pascal VOC, CVAT."""
    lists = sorted(root.glob('ImageSets/Segmentation/[!.]*.txt'))
    maps = next((path for name in _VOC_FOLDERS if _has_images(path := root / name)), None)
    return partial(_image_set_parts, root, maps, lists) if lists and maps else None


def _image_set_parts(
    root: Path, maps: Path, lists: list[Path], notes: list[str]
) -> dict[str, MapPart]:
    images = next((path for name in _IMAGE_FOLDERS if _has_images(path := root / name)), None)
    if images is None:
        raise ValueError(
            f'{root} has {maps.name} and no images in JPEGImages or images: export them too'
        )
    files = _by_name(images_in(images), images)
    parts: dict[str, list[str]] = {}
    for path in lists:
        names = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        part = 'trainval' if path.stem == 'trainval' else part_of(path.stem) or 'train'
        missing = [name for name in names if name not in files]
        if missing and part != 'test':
            raise ValueError(f'{images} has no image {short(missing[0])}, which {path.name} lists')
        parts.setdefault(part, []).extend(names)
    both = parts.pop('trainval', [])
    others = {*parts.get('val', ()), *parts.pop('test', ())}
    parts.setdefault('train', [name for name in both if name not in others])
    found = _by_name(images_in(maps), maps)
    return _with_maps(images, maps, parts, files, found, '', notes)


def _with_maps(
    images: Path,
    maps: Path,
    parts: Mapping[str, Iterable[str]],
    files: Mapping[str, Path],
    found: Mapping[str, Path],
    tail: str,
    notes: list[str],
) -> dict[str, MapPart]:
    """The images by part that have a label map: tools write none for an image without an annotation."""
    pairs = {
        part: {name: (files[name], found[name + tail]) for name in names if name + tail in found}
        for part, names in parts.items()
    }
    without = [name for names in parts.values() for name in names if name + tail not in found]
    if without:
        notes.append(f'left out, no label map: {listed(without, _MOST)}')
    return {part: MapPart(images, maps, each) for part, each in pairs.items() if each}


def _two_folders(root: Path) -> _ReadParts | None:
    """``images`` and ``masks``, in folders of parts or with such folders in them."""
    parts = {}
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        if (part := part_of(folder.name)) and (pair := _pair(folder)):
            parts[part] = pair
    if not parts and (pair := _pair(root)):
        images, maps = pair
        inner = {part_of(path.name): path for path in images.iterdir() if path.is_dir()}
        inside = {part: (path, maps / path.name) for part, path in inner.items() if part}
        parts = {part: pair for part, pair in inside.items() if pair[1].is_dir()} or {'train': pair}
    return _read_folders(parts)


def _sibling_folders(root: Path) -> _ReadParts | None:
    """``train`` and ``train_labels``, ``val`` and ``val_labels`` (Kaggle), ``default`` and ``defaultannot`` (CVAT)."""
    parts: dict[str, tuple[Path, Path]] = {}
    for maps in sorted(path for path in root.iterdir() if path.is_dir()):
        if match := _SIBLING.fullmatch(maps.name):
            part = part_of(match[1]) or 'train'
            images = [root / match[1], root / f'{match[1]}_images']
            if image_folder := next((path for path in images if _has_images(path)), None):
                if part in parts:
                    return None
                parts[part] = image_folder, maps
    return _read_folders(parts)


def _read_folders(parts: dict[str, tuple[Path, Path]]) -> _ReadParts | None:
    found = {
        part: pair for part, pair in parts.items() if part != 'test' and all(map(_has_images, pair))
    }
    if not found:
        return None
    return lambda _: {part: named_alike(*pair) for part, pair in found.items()}


def _beside_images(root: Path) -> _ReadParts | None:
    """``X.jpg`` and ``X_mask.png`` in one folder (Roboflow: in ``train`` and ``valid``)."""
    stems = {path.with_suffix('') for path in below(root)[0] if path.suffix.lower() in IMAGES}
    tails = Counter(
        match[0]
        for stem in stems
        if (match := _TAIL.search(stem.name)) and _without(stem, match[0]) in stems
    )
    return partial(_beside_parts, root, set(tails), max(tails, key=tails.__getitem__)) if tails else None  # fmt: skip


def _without(stem: Path, tail: str) -> Path:
    return Path(str(stem).removesuffix(tail))  # nothing may be left of the name


def _beside_parts(root: Path, tails: set[str], tail: str, _: list[str]) -> dict[str, MapPart]:
    files = images_in(root)
    stems = {path.with_suffix('') for path in files}
    maps = {
        path
        for path in files
        if (match := _TAIL.search(path.stem))
        and match[0] in tails
        and _without(path.with_suffix(''), match[0]) in stems
    }
    found = _by_name(_png_last(maps), root, once=False)
    images = _by_name([path for path in files if path not in maps], root)
    names = {path: name for name, path in images.items()}
    parts = {}
    for part, paths in by_part(names, root).items():
        pairs = _pairs(root, root, {names[path]: path for path in paths}, found, tail)
        parts[part] = MapPart(root, root, pairs)
    return parts


def _pair(folder: Path) -> tuple[Path, Path] | None:
    """The image folder and the folder of label maps in a folder."""
    images, maps = (
        next((path for name in names if _has_images(path := folder / name)), None)
        for names in (_IMAGE_FOLDERS, _MAP_FOLDERS)
    )
    return (images, maps) if images and maps else None


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in IMAGES for path in below(folder)[0])


def named_alike(images: Path, maps: Path) -> MapPart:
    """A part whose label maps are in another folder, and have the names of the images, or these and a text (``_mask``).

    Raises:
        ValueError: If an image has no label map, or several images have one name.
    """
    files = _by_name(images_in(images), images)
    found = _by_name(_png_last(images_in(maps)), maps, once=False)
    name, first = next(iter(files.items()))
    beside = sorted(other for other in found if other.startswith(name))
    if not beside:
        raise ValueError(f'{first} has no label map in {maps}')
    tail = min(beside, key=len).removeprefix(name)
    return MapPart(images, maps, _pairs(images, maps, files, found, tail))


def _pairs(
    images: Path, maps: Path, files: Mapping[str, Path], found: Mapping[str, Path], tail: str
) -> dict[str, tuple[Path, Path]]:
    without = [name for name in files if name + tail not in found]
    if without:
        ending = next(path.suffix for name, path in found.items() if name.endswith(tail))
        raise ValueError(
            f'{len(without)} of {len(files)} images of {images} have no label map in {maps} '
            f'(NAME{tail}{ending}): {", ".join(without[:_MOST])}'
        )
    return {name: (path, found[name + tail]) for name, path in files.items()}


def _png_last(paths: Iterable[Path]) -> list[Path]:
    return sorted(paths, key=lambda path: path.suffix.lower() == '.png')


def _by_name(paths: Iterable[Path], folder: Path, once: bool = True) -> dict[str, Path]:
    """Paths by their names seen from the folder, without ending.

    Raises:
        ValueError: If several have one name; with ``once=False``, the last one counts.
    """
    found: dict[str, Path] = {}
    for path in paths:
        name = path.relative_to(folder).as_posix().removesuffix(path.suffix)
        if once and name in found:
            raise ValueError(
                f'several images of {folder} are named {name}, which one label map cannot be of'
            )
        found[name] = path
    return found
