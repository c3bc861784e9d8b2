"""Faults of COCO files that MMDetection reads past, and that pycocotools stumbles over in the first evaluation, or
counts wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .data_audit import DataReport

BOM = b'\xef\xbb\xbf'


def check_evaluated(content: dict, data: bytes, report: DataReport, masks: bool) -> None:
    """Report what pycocotools cannot read of a file that is evaluated, or reads otherwise than it is meant.

    Args:
        content: The file, which MMDetection can read.
        data: Its bytes.
        report: Gets the problems.
        masks: Whether masks are evaluated too.
    """
    if data.startswith(BOM):
        report.problems.append(
            'the annotation file begins with a byte order mark: save it as UTF-8 without'
        )
    boxes = content['annotations']
    report.refuse(
        [b['id'] for b in boxes if 'iscrowd' not in b],
        "boxes have no 'iscrowd' (0 for all but crowds); ids",
    )
    if boxes and all(box.get('iscrowd') for box in boxes):
        report.problems.append("every box marks a crowd ('iscrowd': 1), of which none is evaluated")
    texts = [box['id'] for box in boxes if type(box['id']) is not int]
    report.refuse(
        texts, "values of 'id' in 'annotations' are no integers, which the evaluation needs"
    )
    if any(box['id'] == 0 for box in boxes):
        report.problems.append(
            "a box has the id 0, which the evaluation takes for 'not found': number them from 1"
        )
    kinds = {type(image['id']) for image in content['images']}
    if len(kinds) > 1:
        report.problems.append(
            "values of 'id' in 'images' are numbers and texts: make them of one kind"
        )
    if masks:
        sizes = {image['id']: (image['height'], image['width']) for image in content['images']}
        faults = [
            (b['id'], evaluation_fault(b['segmentation'], sizes.get(b['image_id'])))
            for b in boxes
            if b.get('segmentation')
        ]
        report.refuse(
            [f'{n} ({fault})' for n, fault in faults if fault], 'masks cannot be evaluated; ids'
        )


def evaluation_fault(mask: Any, size: tuple[int, int] | None) -> str | None:
    """Why pycocotools cannot draw a mask, in an image of height and width ``size``; None if it can."""
    if isinstance(mask, list):
        short = [polygon for polygon in mask if len(polygon) < 6 or len(polygon) % 2]
        return (
            f'a polygon of {len(short[0])} numbers, not of three points or more' if short else None
        )
    counts = mask['counts']
    pixels = sum(counts if isinstance(counts, list) else _lengths(counts))
    wanted = mask['size'][0] * mask['size'][1]
    return None if pixels == wanted else f'run lengths of {pixels} pixels, image of {wanted}'


def _lengths(text: str | bytes) -> Iterable[int]:
    """The run lengths that a text of pycocotools holds: groups of five bits above character 48, of which the sixth says
    that more follow; from the fourth on, each is the difference to the one before the last."""
    lengths: list[int] = []
    value = shift = 0
    for code in text.encode() if isinstance(text, str) else text:
        bits = code - 48
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            if bits & 16:
                value -= 1 << shift
            lengths.append(value + (lengths[-2] if len(lengths) > 2 else 0))
            value = shift = 0
    return lengths


def mended(content: dict) -> tuple[dict, list[str]]:
    """A COCO content in which what has one right mending is mended, and what was done, a line each: boxes without
    ``iscrowd`` are no crowds, and ids of boxes that the evaluation cannot use become their numbers in the file."""
    boxes, notes = content['annotations'], []
    without = sum('iscrowd' not in box for box in boxes)
    if without:
        boxes = [{'iscrowd': 0, **box} for box in boxes]
        notes.append(f"{without} boxes had no 'iscrowd': they are taken for no crowds")
    ids = [box.get('id') for box in boxes]
    if any(type(each) is not int or each == 0 for each in ids) or len(set(ids)) < len(ids):
        boxes = [{**box, 'id': number} for number, box in enumerate(boxes, 1)]
        notes.append(
            'boxes are numbered anew from 1: their ids were 0, texts, missing or not unique'
        )
    return ({**content, 'annotations': boxes} if notes else content), notes
