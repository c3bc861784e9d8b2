"""YOLO's label files as COCO's dicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from mmlape.apps.inference.reading import is_of_macos, read_text, short

from .contents import MOST_SMALL, CocoContent, are_numbers, check_names
from .folders import images_in

# Far above real data: shares of the image; levels of YAML, and values with those of aliases.
_MOST_SHARE, _MOST_LEVELS, _MOST_VALUES = 1e4, 50, 10**6
_LOADER = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)  # in Python, 70,000 names take a minute


def _yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        ValueError: If it cannot be read, or has too many levels, or aliases that make it too large.
    """
    text = read_text(path, MOST_SMALL)
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
            coco = CocoContent(names)
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
