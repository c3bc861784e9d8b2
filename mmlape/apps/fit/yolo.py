"""YOLO's label files, with the file that describes the data set, as COCO's dicts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mmlape.apps.inference.reading import is_of_macos, read_text, short
from mmlape.checks import are_numbers

from .contents import MOST_SMALL, CocoContent, check_names
from .folders import by_part, images_in

_MOST_SHARE = 2.0  # of the image: boxes reach beyond it, and pixels are above
_MOST_LEVELS, _MOST_VALUES = 50, 10**6  # of YAML, those of aliases among them: far above real data
_DARKNET = {'names', 'train'}  # entries of its file
_CLASSES = 'classes.txt'
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


class YoloSet(NamedTuple):
    """A description of a YOLO data set.

    Attributes:
        file: Where it stands.
        names: Of the classes, by their numbers.
        images: Of each part.
    """

    file: Path
    names: list[str]
    images: Mapping[str, Sequence[Path]]


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


def read_yolo(root: Path) -> dict[str, Any]:
    """COCO contents of the parts of a YOLO data set with a YAML file, with the folder that their images are seen
    from."""
    file, content = _yaml_of(root)  # type: ignore[misc]
    if 'kpt_shape' in content:
        raise ValueError(
            f'{file} is of keypoints, which are not trained: labels must be boxes or polygons'
        )
    return _read(
        root, YoloSet(file, _names_of(content['names'], file), _named(root, file, content))
    )


def _named(root: Path, file: Path, content: Mapping[str, Any]) -> dict[str, list[Path]]:
    """The images of the parts that a file names by ``train`` and ``val``: folders, lists of files, or several."""
    parts = {}
    for part in ('train', 'val'):
        places = content.get(part) or []
        places = places if isinstance(places, list) else [places]
        top = content.get('path') or ''
        if not all(isinstance(place, str) for place in (top, *places)):
            raise ValueError(
                f'{file}: path must be a folder, {part} a folder or file or a list of them'
            )
        parts[part] = [path for place in places for path in _images_at(root, file, top, place)]
    return parts


def darknet_file(root: Path) -> Path | None:
    """The file of Darknet, which CVAT's YOLO 1.1 has too, that says where names and images are."""
    return next(
        (path for path in sorted(root.glob('*.data')) if _entries(path).keys() >= _DARKNET), None
    )


def _entries(file: Path) -> dict[str, str]:
    """The lines ``key = value`` of a file; {} if it is no text."""
    try:
        lines = read_text(file, MOST_SMALL).splitlines()
    except ValueError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition('=') for line in lines)}


def read_darknet(root: Path, file: Path) -> dict[str, Any]:
    """COCO contents of the parts of a data set that a file of Darknet describes."""
    entries = _entries(file)
    names = _found(root, '', entries['names'])
    if names is None:
        raise ValueError(f'{file}: there is no {short(entries["names"])}, which it names')
    images = _named(root, file, dict(train=entries['train'], val=entries.get('valid')))
    return _read(root, YoloSet(names, _names_in(names), images))


def classes_files(root: Path) -> list[Path]:
    """The ``classes.txt`` of a data set that has nothing else than images and label files (LabelImg, which writes one
    into each folder, Label Studio); [] if no image has a label file."""
    files = [path for name in ('', '*/', '*/*/') for path in sorted(root.glob(name + _CLASSES))]
    return files if files and any(map(_label_file, images_in(root))) else []


def read_label_files(root: Path, files: list[Path]) -> dict[str, Any]:
    """COCO contents of images with label files, by the part that their folders are named after.

    Raises:
        ValueError: If several files name other classes.
    """
    names = _names_in(files[0])
    for file in files[1:]:
        if _names_in(file) != names:
            raise ValueError(f'{files[0]} and {file} name other classes: they must be the same')
    return _read(root, YoloSet(files[0], names, by_part(images_in(root), root)))


def _names_in(file: Path) -> list[str]:
    lines = [line.strip() for line in read_text(file, MOST_SMALL).splitlines()]
    return _names_of([line for line in lines if line], file)


def _read(root: Path, found: YoloSet) -> dict[str, Any]:
    """COCO contents of the parts, from the label files of their images."""
    parts: dict[str, Any] = {}
    train: set[Path] = set()
    for part in ('train', 'val'):
        images = set(found.images.get(part, ()))
        if not images or (part == 'val' and images == train):
            continue  # not a validation part
        train = images
        coco = CocoContent(found.names)
        for path in sorted(images):
            width, height = coco.add(path, root)
            for label, shares in _labels(path, len(found.names)):
                scaled = [share * (width, height)[index % 2] for index, share in enumerate(shares)]
                coco.box(label, *_box_of(scaled))
        parts[part] = coco.content, root, None
    if 'train' not in parts:
        raise ValueError(f'{found.file}: no image is in train')
    trained = found.images['train']
    if not any(map(_label_file, trained)):
        raise ValueError(
            f'none of {len(trained)} images for training has a label file; that of {trained[0]} would be '
            f'{" or ".join(map(str, _label_files(trained[0])))}'
        )
    return parts


def _box_of(values: list[float]) -> tuple[list[float], list[list[float]] | None]:
    """Left, top, width, height, and the polygon, of a centre and sides or of a polygon."""
    if len(values) == 4:
        x, y, width, height = values
        return [x - width / 2, y - height / 2, width, height], None
    xs, ys = values[::2], values[1::2]
    return [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)], [values]


def _names_of(names: Any, file: Path | None) -> list[str]:
    """Class names in the order of their numbers."""
    if isinstance(names, dict) and set(names) == set(range(len(names))):
        names = [names[number] for number in range(len(names))]
    if not isinstance(names, list):
        raise ValueError(f'{file}: names must be a list, or numbers from 0 with a name each')
    # YAML reads 7 and no as a number and False. A list in it may be as large as it likes.
    texts = [str(name) if isinstance(name, (bool, int, float)) else name for name in names]
    return list(check_names(texts, file))


def _found(root: Path, top: str, place: str) -> Path | None:
    """The file or folder that a text of a data set's file stands for, below the folder; None if it is not there."""
    place = place.replace('\\', '/') if not os.path.exists(root / place) else place  # of Windows
    # Roboflow's files say ../train/images, and CVAT's data/train.txt, for what is in the folder itself.
    tries = [
        root / top / place,
        *(root / place.removeprefix(start) for start in ('', '../', 'data/')),
        *_tails(root, place),
    ]
    return next((path for path in tries if os.path.exists(path)), None)


def _tails(root: Path, place: str) -> Iterator[Path]:
    """Where an absolute path of another machine may be in the folder, the longest one first."""
    parts = Path(place).parts if os.path.isabs(place) or place[1:2] == ':' else ()
    return (root.joinpath(*parts[start:]) for start in range(1, len(parts)))


def _images_at(root: Path, file: Path, top: str, place: str) -> list[Path]:
    """Images of a folder, or of a list of files, that a file names."""
    found = _found(root, top, place)
    if found is None:
        raise ValueError(f'{file}: there is no {short(place)}, which it names')
    if found.is_dir():
        if found.resolve() in root.resolve().parents:  # to search `/` takes hours
            raise ValueError(f'{file} names {short(place)}, which is not below the folder')
        return images_in(found)
    lines = [line.strip() for line in read_text(found).splitlines() if line.strip()]
    paths = {line: _found(found.parent, '', line) or _found(root, '', line) for line in lines}
    missing = [line[:200] for line, path in paths.items() if path is None or not path.is_file()]
    if missing:
        raise ValueError(f'{len(missing)} images of {found} are missing: {", ".join(missing[:5])}')
    return [path for path in paths.values() if path is not None]


def _label_files(image: Path) -> list[Path]:
    """Where the label file of an image may be: in ``labels`` for ``images``, or beside it."""
    folders = list(image.absolute().parent.parts)
    places = [image.parent / f'{image.stem}.txt']
    if 'images' in folders:
        folders[len(folders) - 1 - folders[::-1].index('images')] = 'labels'
        places.insert(0, Path(*folders, f'{image.stem}.txt'))
    return places


def _label_file(image: Path) -> Path | None:
    return next((path for path in _label_files(image) if os.path.exists(path)), None)


def _labels(image: Path, count: int) -> Iterator[tuple[int, list[float]]]:
    """Class and numbers (shares of the image: a centre and sides, or a polygon) of the lines of an image's label file;
    none without a file."""
    file = _label_file(image)
    lines = read_text(file).splitlines() if file else []
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
                raise ValueError(
                    'numbers must be shares of the width and height, 0 to 1, not pixels'
                )
            # A table of floats has 1.0 for 1.
            label = int(float(label)) if float(label).is_integer() else int(label)
            if not 0 <= label < count:
                raise ValueError(f'there are {count} names')
        except ValueError as error:
            raise ValueError(f'{file}, line {number}: {line.strip()[:60]!r}: {error}') from None
        yield int(label), shares
