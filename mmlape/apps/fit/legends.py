"""Legends of label maps: which class a colour or a value stands for.

A colour is a number, :func:`colour_code`, above all indices, so that one table serves label maps of both kinds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mmlape.apps.inference.reading import read_text, short

from .contents import MOST_SMALL, check_names

IGNORED = 255  # MMSegmentation's ignore_index
_COLOUR = 1 << 24
_INDEX_FILE = '_classes.csv'  # Roboflow
# CVAT and Pascal VOC, CamVid, CamVid on Kaggle and data sets like it.
LEGEND_FILES = (
    'labelmap.txt',
    'label_colors.txt',
    'class_dict.csv',
    'class_dict_seg.csv',
    _INDEX_FILE,
)
_NOT_CLASSES = ('void', 'ignore', 'ignored', 'unlabeled', 'unlabelled')
# `name:r,g,b:parts:actions`, `name,r,g,b`; `r g b name`.
_NAME_FIRST = re.compile(r'(.+?)[\s,:;]+(\d+)[\s,;]+(\d+)[\s,;]+(\d+)\s*(?::.*)?')
_NAME_LAST = re.compile(r'(\d+)[\s,;]+(\d+)[\s,;]+(\d+)[\s,:;]+(.+)')
_INDEX_ROW = re.compile(r'(\d+)\s*,\s*(.+)')
_CITYSCAPES = (
    'road', 'sidewalk', 'building', 'wall', 'fence', 'pole', 'traffic light', 'traffic sign', 'vegetation', 'terrain',
    'sky', 'person', 'rider', 'car', 'truck', 'bus', 'train', 'motorcycle', 'bicycle',
)  # fmt: skip
# The ids of these classes; the other ones below 34 are ignored.
_CITYSCAPES_IDS = (7, 8, 11, 12, 13, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 31, 32, 33)


class Legend(NamedTuple):
    """Classes of label maps.

    Attributes:
        where: The file, or the standard.
        classes: Names of the classes, in order.
        labels: The class or :data:`IGNORED` by index and, in a legend of colours, by the code of its colour.
        ignored: Names of rows that are not classes.
    """

    where: str
    classes: tuple[str, ...]
    labels: Mapping[int, int]
    ignored: tuple[str, ...] = ()

    @property
    def has_colours(self) -> bool:
        """Whether it is a legend of colours."""
        return any(value >= _COLOUR for value in self.labels)


def colour_code(red: int, green: int, blue: int) -> int:
    """The number that stands for a colour; NumPy arrays of integers work too."""
    return _COLOUR | red << 16 | green << 8 | blue


def value_text(value: int) -> str:
    """An index or a colour for a message: ``7``, ``(128, 64, 0)``."""
    if value < _COLOUR:
        return str(value)
    return str((value >> 16 & 255, value >> 8 & 255, value & 255))


def find_legend(root: Path, files: Iterable[Path]) -> Legend | None:
    """The legend in a folder or in those on the way to the label maps and images in it; None without one.

    Raises:
        ValueError: If one cannot be read, or several differ.
    """
    folders = {root} | {folder for path in files for folder in path.parents if root in folder.parents}  # fmt: skip
    paths = [
        path
        for folder in sorted(folders)
        for name in LEGEND_FILES
        if (path := folder / name).is_file()
    ]
    legends = [read_legend(path) for path in paths]
    for path, legend in zip(paths, legends, strict=True):
        if legend[1:] != legends[0][1:]:
            raise ValueError(f'{paths[0]} and {path} name other classes: leave one legend')
    return legends[0] if legends else None


def cityscapes_legend(label_map: Path) -> Legend | None:
    """The classes of Cityscapes, for a label map with a name of that data set."""
    count = len(_CITYSCAPES)
    if label_map.stem.endswith('_gtFine_labelTrainIds'):
        return Legend('Cityscapes', _CITYSCAPES, {number: number for number in range(count)})
    if label_map.stem.endswith('_gtFine_labelIds'):
        ids = dict(zip(_CITYSCAPES_IDS, range(count), strict=True))
        return Legend('Cityscapes', _CITYSCAPES, dict.fromkeys(range(34), IGNORED) | ids)
    return None


def read_legend(path: Path) -> Legend:
    """Read a file of a name and three numbers in each line, or Roboflow's of a number and a name.

    Raises:
        ValueError: If a line has something else, or a value has two names.
    """
    names: dict[int, str] = {}
    lines = [line.strip() for line in read_text(path, MOST_SMALL).splitlines()]
    rows = [(number, line) for number, line in enumerate(lines, 1) if line and line[0] != '#']
    if rows and not any(map(str.isdigit, rows[0][1])):
        rows = rows[1:]  # the names of the columns
    for number, line in rows:
        value, name = _row(line, path.name == _INDEX_FILE, f'{path}, line {number}')
        if names.setdefault(value, name) != name:
            raise ValueError(
                f'{path}, line {number}: {value_text(value)} is {names[value]!r} already, got {name!r}'
            )
    check_names(names.values(), path)
    return _legend(path, names)


def _row(line: str, has_index: bool, where: str) -> tuple[int, str]:
    if has_index:
        if match := _INDEX_ROW.fullmatch(line):
            value, name = int(match[1]), match[2]
            if value <= 255:
                return value, name.strip(' "')
        raise ValueError(f'{where}: needs a value from 0 to 255 and a name, got {short(line)}')
    if match := _NAME_FIRST.fullmatch(line):
        name, *colour = match.groups()
    elif match := _NAME_LAST.fullmatch(line):
        *colour, name = match.groups()
    if match and max(map(int, colour)) <= 255:
        return colour_code(*map(int, colour)), name.strip(' "')
    raise ValueError(f'{where}: needs a name and three numbers from 0 to 255, got {short(line)}')


def _legend(path: Path, names: Mapping[int, str]) -> Legend:
    ignored = [name for name in names.values() if name.lower() in _NOT_CLASSES]
    classes = list(dict.fromkeys(name for name in names.values() if name not in ignored))
    if not 2 <= len(classes) <= IGNORED:
        raise ValueError(
            f'{path} needs 2 to {IGNORED} classes, the background is one, got {len(classes)}: '
            f'{short(", ".join(classes))}'
        )
    numbers = {name: number for number, name in enumerate(classes)}
    labels = {value: numbers.get(name, IGNORED) for value, name in names.items()}
    # Label maps of one channel have the number of the row.
    in_order = dict(enumerate(labels.values())) if path.name != _INDEX_FILE else {}
    return Legend(str(path), tuple(classes), in_order | labels, tuple(ignored))
