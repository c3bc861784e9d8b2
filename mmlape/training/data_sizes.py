"""Checks of sizes: boxes against their image in float32, and sizes in a COCO file against the decoded images."""

from __future__ import annotations

import os.path as osp
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from mmcv import rescale_size
from PIL import Image

if TYPE_CHECKING:
    from .data_audit import DataReport

TURNED = (5, 6, 7, 8)  # values of EXIF's orientation with width and height exchanged
# Scaling with the image may round the corners of a box apart or together by some of float32's steps.
_STEPS = 8
_CURE = 'use the images that were labelled, or scale sizes, boxes and masks in the file as the images were'


def no_part_inside(boxes: np.ndarray, limit: np.ndarray) -> np.ndarray:
    """Find boxes that have no width or height left when MMDetection has clipped them, in float32, to their image: their
    losses are NaN.

    Args:
        boxes: ``(N, 4)`` x, y, width and height in pixels.
        limit: ``(N, 2)`` width and height of their images.

    Returns:
        ``(N,)`` bool.
    """
    first, last = boxes[:, :2], boxes[:, :2] + boxes[:, 2:]
    limit = limit.astype(np.float32)
    start, end = (np.clip(each.astype(np.float32), 0, limit) for each in (first, last))
    return (end - start <= _STEPS * np.spacing(limit)).any(1)


def is_turned(path: str) -> bool:
    """Whether EXIF data exchange width and height of an image file; False if they cannot be read."""
    try:
        with Image.open(path) as image:
            return image.getexif().get(0x0112) in TURNED
    except Exception:  # Pillow's decoders raise errors of many types
        return False


def check_sizes(
    content: dict, decoded: Mapping[str, tuple[int, int]], folder: str, report: DataReport
) -> None:
    """Compare sizes in a COCO file with those of decoded images.

    Refused are images that EXIF data turn, other sizes if they are most of the decoded images, and single ones whose
    boxes or run lengths do not fit; the others are noted.

    Args:
        content: The file.
        decoded: Height and width by ``file_name``, as the pipeline reads the images.
        folder: The image folder.
        report: Gets problems and notes.
    """
    entries = [
        each
        for each in content['images']
        if each['file_name'] in decoded
        and decoded[each['file_name']] != (each['height'], each['width'])
    ]
    turned, other = list[str](), list[str]()
    for each in entries:
        name = each['file_name']
        height, width = decoded[name]
        swapped = (each['width'], each['height']) == (height, width)
        kind = turned if swapped and is_turned(osp.join(folder, name)) else other
        kind.append(f'{name} ({width} x {height})')
    report.refuse(
        turned,
        f'of {len(decoded)} decoded images are turned by their EXIF data, and the annotation file has their width and '
        'height before that: if its boxes fit the stored pixels, delete the EXIF orientation of the images, or load '
        "them with color_type='color_ignore_orientation'; else exchange width and height in the file",
    )
    what = 'images have another size than the annotation file says'
    if len(entries) > len(decoded) / 2:
        report.refuse(other, f'of {len(decoded)} decoded {what} ({_CURE})')
        return
    report.note(other, what)
    unfit = _unfit(content, {each['id']: decoded[each['file_name']] for each in entries})
    report.refuse(
        unfit,
        f'boxes or masks do not fit their image, whose size is not the one in the file ({_CURE}); ids',
    )


def _unfit(content: dict, sizes: Mapping[Any, tuple[int, int]]) -> list[str]:
    """Ids of boxes of images with these sizes (height and width, by id) that have no part inside, or run lengths."""
    names = {each['id']: each['file_name'] for each in content['images']}
    found = defaultdict(list)
    for box in content.get('annotations', ()):
        if box['image_id'] in sizes:
            found[box['image_id']].append(box)
    unfit = []
    for image, boxes in found.items():
        height, width = sizes[image]
        empty = no_part_inside(
            np.array([box['bbox'] for box in boxes], dtype=float),
            np.tile([width, height], (len(boxes), 1)),
        )
        for box, outside in zip(boxes, empty, strict=True):
            if outside or isinstance(box.get('segmentation'), dict):
                unfit.append(f'{box["id"]} ({names[image]})')
    return unfit


def too_narrow(sizes: Mapping[str, tuple[int, int]], steps: Iterable[Any]) -> list[str]:
    """Names of images, with their sizes, of which a pipeline that keeps proportions leaves no row or column.

    Args:
        sizes: Height and width by name.
        steps: The pipeline.
    """
    scales = list(_scales(steps))
    return [
        f'{name} ({width} x {height})'
        for name, (height, width) in sizes.items()
        if any(0 in rescale_size((width, height), scale) for scale in scales)
    ]


def _scales(steps: Any) -> Iterator[tuple[int, int]]:
    """The smallest sizes to which steps of a pipeline, nested ones too, resize images with their proportions."""
    for step in steps if isinstance(steps, (list, tuple)) else [steps]:
        if isinstance(step, (list, tuple)):
            yield from _scales(step)
        if not isinstance(step, Mapping):
            continue
        yield from _scales(step.get('transforms') or ())
        if 'Resize' in str(step.get('type')) and step.get('keep_ratio'):
            given: Any = step.get('scales') or step.get('scale') or ()
            least = min(step.get('ratio_range') or (1.0,))
            for scale in given if given and isinstance(given[0], (list, tuple)) else [given]:
                if len(scale) == 2:
                    yield max(1, int(scale[0] * least)), max(1, int(scale[1] * least))
