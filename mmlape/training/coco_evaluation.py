"""Faults of COCO files that MMDetection reads past, and that pycocotools stumbles over in the first evaluation, or
counts wrongly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mmlape.checks import are_numbers

if TYPE_CHECKING:
    from .data_audit import DataReport


def check_evaluated(content: dict, report: DataReport, masks: bool) -> None:
    """Report what pycocotools cannot read of a file that is evaluated, or reads otherwise than it is meant.

    Args:
        content: The file, which MMDetection can read.
        report: Gets the problems.
        masks: Whether masks are evaluated too.
    """
    boxes = content['annotations']
    report.refuse(
        [b['id'] for b in boxes if b.get('iscrowd') is None],
        "boxes have no 'iscrowd' (0 for all but crowds); ids",
    )
    texts = [box['id'] for box in boxes if not _is_number(box['id'])]
    report.refuse(
        texts, "values of 'id' in 'annotations' are no integers, which the evaluation needs"
    )
    if any(box['id'] == 0 for box in boxes):
        report.problems.append(
            "a box has the id 0, which the evaluation takes for 'not found': number them from 1"
        )
    kinds = {isinstance(image['id'], str) for image in content['images']}
    if len(kinds) > 1:
        report.problems.append(
            "values of 'id' in 'images' are numbers and texts: make them of one kind"
        )
    if masks:
        sizes = {image['id']: (image['height'], image['width']) for image in content['images']}
        faults = [
            (b['id'], evaluation_fault(b.get('segmentation'), sizes.get(b['image_id'])))
            for b in boxes
        ]
        report.refuse(
            [f'{n} ({fault})' for n, fault in faults if fault], 'masks cannot be evaluated; ids'
        )


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def is_list_of_numbers(value: Any) -> bool:
    """Whether it is a list of finite numbers."""
    return isinstance(value, list) and are_numbers(value)


def evaluation_fault(mask: Any, size: tuple[int, int] | None) -> str | None:
    """Why pycocotools cannot draw a mask, in an image of height and width ``size`` (None: unknown); None if it can."""
    if fault := mask_fault(mask, size):
        return fault
    short = [] if isinstance(mask, dict) else [each for each in mask if not is_drawn(each)]
    return f'a polygon of {len(short[0])} numbers, not of three points or more' if short else None


def is_drawn(polygon: list[float]) -> bool:
    """Whether MMDetection draws a polygon: it drops others."""
    return len(polygon) >= 6 and len(polygon) % 2 == 0


def mask_fault(mask: Any, size: tuple[int, int] | None) -> str | None:
    """Why MMDetection cannot read a mask, in an image of height and width ``size`` (None: unknown); None if it can."""
    if not mask:
        return 'no segmentation'
    if isinstance(mask, list):
        return (
            None
            if all(map(is_list_of_numbers, mask))
            else 'a polygon is not a list of finite numbers'
        )
    if not isinstance(mask, dict):
        return f'a {type(mask).__name__}'
    shape: Any = mask.get('size')
    counts: Any = mask.get('counts')
    if not (
        is_list_of_numbers(shape) and len(shape) == 2 and size in (None, tuple(shape)) and counts
    ):
        return f'run lengths of size {shape}, image {size and list(size)}'
    if not isinstance(counts, str) and not is_list_of_numbers(counts):
        return 'counts are neither a text nor a list of finite numbers'
    wanted = shape[0] * shape[1]
    lengths = counts if isinstance(counts, list) else _lengths(counts)
    if outside := [each for each in lengths if not 0 <= each <= wanted]:
        return f'a run length of {outside[0]}, image of {wanted} pixels'
    # pycocotools would read on behind lengths that end too soon.
    pixels = sum(lengths)
    return None if pixels == wanted else f'run lengths of {pixels} pixels, image of {wanted}'


def _lengths(text: str) -> list[int]:
    """The run lengths that a text of pycocotools holds: groups of five bits above character 48, of which the sixth says
    that more follow; from the fourth on, each is the difference to the one before the last."""
    codes = np.frombuffer(text.encode(), np.uint8).astype(np.int64) - 48
    last = np.flatnonzero(codes & 32 == 0)
    if not last.size:
        return []
    codes = codes[: last[-1] + 1]
    first = np.append(0, last[:-1] + 1)
    # More than 12 groups are no length of an image.
    shift = 5 * np.minimum(np.arange(codes.size) - np.repeat(first, last - first + 1), 12)
    values = np.add.reduceat((codes & 31) << shift, first)
    values -= np.where(codes[last] & 16, 1 << np.minimum(shift[last] + 5, 62), 0)
    for start in (1, 2):
        values[start::2] = np.cumsum(values[start::2])
    return values.tolist()


_CROWDS = {None: 0, '0': 0, '1': 1}


def mended(content: dict) -> tuple[dict, list[str]]:
    """A COCO content in which what has one right mending is mended, and what was done, a line each.

    Boxes without ``iscrowd`` are no crowds, those without ``area`` get that of the box, and ids of boxes that the
    evaluation cannot use become their numbers in the file.
    """
    boxes, notes = content['annotations'], []
    without = sum('area' not in box and 'bbox' in box for box in boxes)
    if without:
        boxes = [
            {**box, 'area': box['bbox'][2] * box['bbox'][3]}
            if 'area' not in box and 'bbox' in box
            else box
            for box in boxes
        ]
        notes.append(f"{without} boxes had no 'area': it is that of the box")
    crowds = [box.get('iscrowd') for box in boxes]
    strange = sum(each is None or each in ('0', '1') for each in crowds)
    if strange:
        boxes = [
            {**box, 'iscrowd': _CROWDS[each] if each is None or each in ('0', '1') else each}
            for box, each in zip(boxes, crowds, strict=True)
        ]
        notes.append(f"{strange} boxes had no number 'iscrowd': without one, they are no crowds")
    ids = [box.get('id') for box in boxes]
    if not all(_is_number(each) and each for each in ids) or len(set(ids)) < len(ids):
        boxes = [{**box, 'id': number} for number, box in enumerate(boxes, 1)]
        notes.append(
            'boxes are numbered anew from 1: their ids were 0, texts, missing or not unique'
        )
    return ({**content, 'annotations': boxes} if notes else content), notes
