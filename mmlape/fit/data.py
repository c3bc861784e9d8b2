"""What a folder of images holds: its format, its classes, and what is for training and what for validation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

TASKS = ('detect', 'instance', 'segment')


@dataclass(frozen=True)
class Part:
    """The training or the validation part of a data set, as upstream's data sets read it.

    Attributes:
        images: The image folder.
        ann_file: A COCO file; of label maps a list of the names of the part without suffix, or '' for the whole folder.
        count: How many images there are.
        label_maps: The folder of label maps, '' for boxes.
    """

    images: str
    ann_file: str
    count: int
    label_maps: str = ''


@dataclass(frozen=True)
class OwnData:
    """A data set that was found in a folder.

    Attributes:
        task: ``'detect'`` (boxes), ``'instance'`` (boxes and masks) or ``'segment'`` (label maps).
        format: ``'COCO'``, ``'YOLO'``, ``'Pascal VOC'`` or ``'label maps'``.
        classes: Names of the classes; the index in it is the label.
        train: The part for training.
        val: The part for validation, or None.
        img_suffix, map_suffix: Endings of images and label maps (label maps only).
        notes: What a user should know, a line each: a class without a box, images without a label, ...
    """

    task: str
    format: str
    classes: tuple[str, ...]
    train: Part
    val: Part | None
    img_suffix: str = '.jpg'
    map_suffix: str = '.png'
    notes: list[str] = field(default_factory=list)


def find_data(
    folder: str | Path,
    out: str | Path,
    task: str | None = None,
    val: float = 0.2,
    seed: int = 0,
    train_ann: str | None = None,
    val_ann: str | None = None,
) -> OwnData:
    """Find out what ``folder`` holds."""
    raise NotImplementedError
