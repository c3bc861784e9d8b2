"""The content of a folder of images: its parts, its classes, and files to write before it can be read."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .files import Content


@dataclass(frozen=True)
class Part:
    """The training or the validation part of a data set, as upstream's data sets read it.

    Attributes:
        images: The image folder.
        ann_file: A COCO file; of label maps a list of the names of the part without suffix, or '' for the whole folder.
        count: How many images there are.
        label_maps: The folder of label maps, '' for boxes.
        empty: Of them, images without a box, which are trained on only with ``--negatives``.
    """

    images: str
    ann_file: str
    count: int
    label_maps: str = ''
    empty: int = 0


@dataclass(frozen=True)
class OwnData:
    """A data set that was found in a folder.

    Attributes:
        task: ``'detect'`` (boxes), ``'instance'`` (boxes and masks) or ``'segment'`` (label maps).
        format: A name of :data:`FORMATS`.
        classes: Names of the classes; the index in it is the label.
        train: The part for training.
        val: The part for validation, or None.
        img_suffix, map_suffix: Endings of images and label maps (label maps only).
        most: The most boxes that an image has.
        notes: What a user should know, a line each.
        files: Contents of files to write before the data can be read (a split, converted annotations, copies of label
            maps, links to images), by their paths; see :func:`~mmlape.apps.fit.files.write_files`.
    """

    task: str
    format: str
    classes: tuple[str, ...]
    train: Part
    val: Part | None
    img_suffix: str = '.jpg'
    map_suffix: str = '.png'
    most: int = 0
    notes: list[str] = field(default_factory=list)
    files: Mapping[str, Content] = field(default_factory=dict)


class Split:
    """Draws a validation part, and collects what is to be written for it, and notes for the user."""

    def __init__(self, folder: Path, share: float, seed: int, notes: list[str]) -> None:
        self.folder, self.share, self.seed, self.notes = folder, share, seed, notes
        self.files: dict[str, Content] = {}

    def draw(self, names: Iterable[str]) -> set[str]:
        """The names of the validation images; the same for the same names and seed."""
        ordered = sorted(names)
        if not self.share:
            return set()
        if len(ordered) < 2:
            raise ValueError(
                f'there is {len(ordered)} image: too few for a validation part (--val 0)'
            )
        count = min(max(1, round(self.share * len(ordered))), len(ordered) - 1)
        return set(random.Random(self.seed).sample(ordered, count))

    def write(self, name: str, content: Content) -> str:
        """Note a file to be written; returns its path."""
        path = str(self.folder / name)
        self.files[path] = content
        return path


class Asked(NamedTuple):
    """Arguments of :func:`find_data`, for the readers of :data:`FORMATS`."""

    root: Path
    task: str | None
    train_ann: str | None
    val_ann: str | None
    classes: tuple[str, ...]
    split: Split
    unread: list[str]


def is_utf8(text: str) -> bool:
    """Whether a text can be printed and written: names of files may hold any bytes."""
    return text == text.encode(errors='replace').decode()
