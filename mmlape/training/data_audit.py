"""Checks of data sets on the local disk: COCO files, label maps, and the files that they name."""

from __future__ import annotations

import json
import math
import os
import os.path as osp
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mmcv
import numpy as np
from mmengine import fileio
from PIL import Image, UnidentifiedImageError

from mmlape.checks import did_you_mean

# What MMDetection reads, and how many of these keys must differ between entries.
_KEYS = {
    'images': (('id', 'file_name', 'height', 'width'), 2),
    'annotations': (('id', 'image_id', 'category_id', 'bbox', 'area'), 1),
    'categories': (('id', 'name'), 2),
}
_MANY_BOXES = 1000  # in one image: MMDetection's assigners need gigabytes for more
_TOLERANCE = 1.0  # pixels beyond the image that are not counted: annotation tools round


def listed(items: Iterable, limit: int = 5) -> str:
    """At most ``limit`` items, quoted, and how many more there are: ``'a', 'b' and 3 more``."""
    items = list(items)
    text = ', '.join(repr(item) for item in items[:limit])
    return f'{text} and {len(items) - limit} more' if len(items) > limit else text


def repeated(values: Iterable) -> list:
    """The values that occur more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


@dataclass
class DataReport:
    """Problems (training must not start) and notes (what upstream skips, and why) of one data set."""

    title: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, items: Sequence, what: str) -> None:
        """Add the problem ``N what: examples`` if there are items."""
        if items:
            self.problems.append(f'{len(items)} {what}: {listed(items)}')

    def note(self, items: Sequence, what: str) -> None:
        """Add the note ``N what: examples`` if there are items."""
        if items:
            self.notes.append(f'{len(items)} {what}: {listed(items)}')

    def has_no(self, path: str, what: str) -> bool:
        """Add a problem and return True if the file or folder ``path`` does not exist."""
        missing = not osp.exists(path)
        if missing:
            self.problems.append(f'the {what} {path!r} does not exist')
        return missing


def check_coco(dataset: Any, report: DataReport, *, masks: bool, max_decode: int | None) -> None:
    """Check a ``mmdet.datasets.CocoDataset`` that may be lazy; ``masks``: its pipeline loads them."""
    content, folder = _read_coco(dataset.ann_file, report), dataset.data_prefix['img']
    if content is None:
        return
    _check_classes(list(dataset.metainfo['classes']), content['categories'], report)
    _check_numbers(content, report)
    report.has_no(folder, 'image folder')
    if report.problems:
        return
    _check_boxes(dataset, content, report, masks)
    sizes = {image['file_name']: (image['height'], image['width']) for image in content['images']}
    missing = _missing_files(folder, sizes)
    report.refuse(missing, f'of {len(sizes)} images are not in {folder!r}')
    gone = set(missing)
    sample = _evenly_spaced([name for name in sizes if name not in gone], max_decode)
    report.notes.append(f'decoded {len(sample)} of {len(sizes)} images')
    other_size = [
        f'{name} ({image.shape[1]} x {image.shape[0]})'
        for name, image in _decoded(dataset, sample, report, img='')
        if image.shape[:2] != sizes[name]
    ]
    report.note(other_size, 'images have another size than the annotation file says')


def _read_coco(path: str, report: DataReport) -> dict | None:
    """The annotation file, if it holds lists of objects with all keys that MMDetection reads."""
    if report.has_no(osp.dirname(path), 'annotation folder') or report.has_no(
        path, 'annotation file'
    ):
        return None
    data = Path(path).read_bytes()
    try:
        content = json.loads(data)
    except ValueError as error:
        what = f'is not JSON: {error}' if data.strip() else 'is empty'
        report.problems.append(f'the annotation file {path!r} {what}')
        return None
    for section, (keys, unique) in _KEYS.items():
        entries = content.get(section) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            what = 'is empty' if entries == [] else 'is missing, or is not a list'
            report.problems.append(f'the list {section!r} of the annotation file {what}')
            continue
        strange = [entry for entry in entries if not isinstance(entry, dict)]
        report.refuse(strange, f'entries of {section!r} are not objects')
        for index, key in enumerate(() if strange else keys):
            without = [entry.get('id') for entry in entries if key not in entry]
            report.refuse(without, f'entries of {section!r} have no {key!r}; ids')
            if index < unique and not without:
                twice = repeated(entry[key] for entry in entries)
                report.refuse(twice, f'values of {key!r} in {section!r} appear more than once')
    return None if report.problems else content


def _check_classes(classes: list[str], categories: list[dict], report: DataReport) -> None:
    names = [category['name'] for category in categories]
    report.refuse(repeated(classes), 'class names appear more than once')
    # MMDetection numbers the labels in the order of the file, not in that of the class names.
    order = [name for name in names if name in classes]
    if unknown := [name for name in classes if name not in names]:
        hints = ''.join(did_you_mean(name, names) for name in unknown)
        report.problems.append(
            f'{len(unknown)} of {len(classes)} class names are not categories of the annotation '
            f'file: {listed(unknown)}; the file has {listed(names, 100)}{hints}'
        )
    elif order != classes:
        report.problems.append(
            'the class names are not in the order of the annotation file, so MMDetection would '
            f'give boxes the wrong names: write them as {",".join(order)!r}'
        )


def _check_numbers(content: dict, report: DataReport) -> None:
    wrong = [
        image['file_name']
        for image in content['images']
        if any(type(side) is not int or side < 1 for side in (image['width'], image['height']))
    ]
    report.refuse(wrong, 'images have a width or height that is not an integer above 0')
    wrong = [
        f'{box["id"]} ({box["bbox"]}, area {box["area"]})'
        for box in content['annotations']
        if not (_are_numbers(box['bbox']) and len(box['bbox']) == 4 and _are_numbers([box['area']]))
    ]
    report.refuse(wrong, 'boxes or areas are not finite numbers (4 and 1); ids')


def _are_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(value, (int, float)) and math.isfinite(value) for value in values
    )


def _check_boxes(dataset: Any, content: dict, report: DataReport, masks: bool) -> None:
    """What is refused, and how many MMDetection skips for which reason (``CocoDataset.parse_data_info``)."""
    boxes, classes = content['annotations'], list(dataset.metainfo['classes'])
    names = {entry['id']: entry['name'] for entry in content['categories']}
    images = {image['id']: image for image in content['images']}
    homes = [images.get(box['image_id'], content['images'][0]) for box in boxes]
    limit = np.array([(home['width'], home['height']) for home in homes])
    start, size = np.split(np.array([box['bbox'] for box in boxes], dtype=float), 2, axis=1)
    outside = np.minimum(start + size, limit) <= np.maximum(start, 0)
    area = np.array([box['area'] for box in boxes])
    kinds = [names.get(box['category_id']) for box in boxes]
    skipped = {
        'of an image that the file does not list': [b['image_id'] not in images for b in boxes],
        'marked "ignore"': [bool(box.get('ignore')) for box in boxes],
        'outside the image': outside.any(1),
        'smaller than one pixel, or of no area': (area <= 0) | (size < 1).any(1),
        'of a category that the file does not list': [b['category_id'] not in names for b in boxes],
        'of a category that is not among the class names': [kind not in classes for kind in kinds],
    }
    reasons = np.select([*map(np.array, skipped.values())], [*skipped], '')
    used = [box for box, reason in zip(boxes, reasons) if not reason]
    per_class = Counter(names[box['category_id']] for box in used)
    numbers = ', '.join(f'{name} {per_class[name]}' for name in classes[:20])
    report.notes.append(f'{len(images)} images, {len(used)} usable boxes ({numbers})')
    for reason, number in Counter(reasons[reasons != ''].tolist()).items():
        report.notes.append(f'{number} boxes are skipped by MMDetection: {reason}')
    crowds = [box['id'] for box in used if box.get('iscrowd')]
    report.note(crowds, 'boxes mark crowds, which MMDetection ignores; ids')
    over = np.maximum(-start, start + size - limit).max(1) > _TOLERANCE
    beyond = [box['id'] for box, out in zip(boxes, over & (reasons == '')) if out]
    report.note(beyond, 'boxes reach beyond their image and are clipped by MMDetection; ids')
    wrong = len(beyond) + (reasons == 'outside the image').sum()
    if wrong > len(boxes) / 2:
        report.problems.append(
            f'{wrong} of {len(boxes)} boxes reach beyond their image; COCO boxes are '
            '[x, y, width, height] in pixels of the image, not [x1, y1, x2, y2]'
        )
    if not used:
        report.problems.append('no usable box is left')
    if masks:
        faults = {box['id']: _mask_fault(box, images[box['image_id']]) for box in used}
        unread = [f'{number} ({fault})' for number, fault in faults.items() if fault]
        report.refuse(unread, 'boxes have no mask that can be read; ids')
    per_image = Counter(images[box['image_id']]['file_name'] for box in used)
    many = [f'{name} ({number})' for name, number in per_image.items() if number > _MANY_BOXES]
    report.note(many, f'images have more than {_MANY_BOXES} boxes: much memory')
    labelled = {box['image_id'] for box, kind in zip(boxes, kinds) if kind in classes}
    _note_skipped_images(dataset, content['images'], labelled, report)


def _mask_fault(box: dict, image: dict) -> str | None:
    """Why a mask would end a training: MMDetection reads it only when its image comes."""
    mask, size = box.get('segmentation'), [image['height'], image['width']]
    if isinstance(mask, dict):
        fits = 'counts' in mask and list(mask.get('size') or ()) == size
        return None if fits else f'run lengths of size {mask.get("size")}, image {size}'
    if not mask or not isinstance(mask, list):
        return f'a {type(mask).__name__}' if mask else 'no segmentation'
    return None if all(map(_are_numbers, mask)) else 'a polygon is not a list of finite numbers'


def _note_skipped_images(dataset: Any, images: list, labelled: set, report: DataReport) -> None:
    config = {} if dataset.test_mode else dataset.filter_cfg or {}
    empty = [image['file_name'] for image in images if image['id'] not in labelled]
    if config.get('filter_empty_gt'):
        report.note(empty, 'images are skipped by MMDetection: no box of these classes')
    least = config.get('min_size', 0)
    small = [i['file_name'] for i in images if min(i['width'], i['height']) < least]
    report.note(small, f'images are skipped by MMDetection: a side under {least}')


def check_label_maps(
    dataset: Any, report: DataReport, *, squeezes: bool, max_decode: int | None
) -> None:
    """Check a ``mmseg.datasets.BaseSegDataset`` that may be lazy.

    ``squeezes``: its pipeline loads maps with MMSegmentation's ``LoadAnnotations``, which drops sides of 1 pixel.
    """
    images, maps = (dataset.data_prefix.get(key, '') for key in ('img_path', 'seg_map_path'))
    report.has_no(images, 'image folder')
    report.has_no(maps, 'label map folder')
    if dataset.ann_file:
        report.has_no(dataset.ann_file, 'list of images')
    if report.problems:
        return
    report.refuse(repeated(dataset.metainfo['classes']), 'class names appear more than once')
    paths = [entry['img_path'][len(osp.join(images, '')) :] for entry in dataset.load_data_list()]
    suffix, map_suffix = dataset.img_suffix, dataset.seg_map_suffix
    names = [path.removesuffix(suffix) for path in paths]
    if not dataset.ann_file:
        _note_unused_files(dataset, set(names), report)
    elif not names:
        report.problems.append(f'the list of images {dataset.ann_file!r} is empty')
    missing = _missing_files(images, paths)
    report.refuse(missing, f'listed images are not in {images!r}')
    without = _missing_files(maps, [name + map_suffix for name in names])
    report.refuse(without, f'of {len(names)} images have no label map; not in {maps!r}')
    gone = {*missing, *without}
    names = [name for name in names if not gone & {name + suffix, name + map_suffix}]
    if names:
        sample = _evenly_spaced(names, max_decode)
        report.notes.append(f'{len(names)} images with label maps; decoded {len(sample)}')
        _check_labels(dataset, sample, squeezes, report)


def _note_unused_files(dataset: Any, names: set[str], report: DataReport) -> None:
    """Files that MMSegmentation ignores, because of their ending or because their partner is missing."""
    suffix, map_suffix = dataset.img_suffix, dataset.seg_map_suffix
    images, maps = (dataset.data_prefix[key] for key in ('img_path', 'seg_map_path'))
    others, found = (
        sorted(fileio.list_dir_or_file(folder, list_dir=False, recursive=True))
        for folder in (images, maps)
    )
    others = [file for file in others if not file.endswith(suffix)]
    if not names:
        there = f'there are {listed(others)}' if others else 'it is empty'
        report.problems.append(f'no file in {images!r} ends in {suffix!r}; {there}')
        return
    report.note(others, f'files in {images!r} are skipped: they do not end in {suffix!r}')
    found = [file for file in found if file.endswith(map_suffix)]
    unused = [file for file in found if file.removesuffix(map_suffix) not in names]
    report.note(unused, 'label maps are skipped: no image of that name')


def _check_labels(dataset: Any, sample: list[str], squeezes: bool, report: DataReport) -> None:
    """Decode images and label maps, and compare their sizes and values."""
    classes, ignored = list(dataset.metainfo['classes']), dataset.ignore_index
    other_size, thin, blank = [], [], []
    wrong: dict[int, list[str]] = defaultdict(list)
    seen: set[int] = set()
    suffixes = dict(img_path=dataset.img_suffix, seg_map_path=dataset.seg_map_suffix)
    for name, image, stored in _decoded(dataset, sample, report, **suffixes):
        file, (height, width) = name + dataset.seg_map_suffix, image.shape[:2]
        if stored.shape != (height, width):
            found = f'{stored.shape[1]} x {stored.shape[0]}, image {width} x {height}'
            other_size.append(f'{file} ({found})')
        if squeezes and 1 in stored.shape:
            thin.append(file)
        values = np.unique(stored)
        labels = _labels(dataset, values)
        used = labels != ignored
        for value in values[used & ((labels < 0) | (labels >= len(classes)))].tolist():
            wrong[value].append(file)
        seen.update(labels[used].tolist())
        if not used.any():
            blank.append(file)
    report.refuse(other_size, 'label maps have another size than their image')
    what = "label maps have a side of 1 pixel, which MMSegmentation's LoadAnnotations drops"
    report.refuse(thin, what)
    options = f'the ignored label is {ignored}, reduce_zero_label is {dataset.reduce_zero_label}'
    for value, files in sorted(wrong.items()):
        what = f'which is no class (there are {len(classes)} class names, {options})'
        report.refuse(files, f'label maps hold the value {value}, {what}')
    record = report.refuse if len(blank) == len(sample) else report.note
    record(blank, 'label maps hold nothing but the ignored label')
    absent = [name for index, name in enumerate(classes) if index not in seen]
    report.note(absent, 'classes are in none of the decoded label maps')


def _labels(dataset: Any, stored: np.ndarray) -> np.ndarray:
    """The labels that the loss sees, from stored ones (in MMSegmentation's order)."""
    before = stored
    if dataset.reduce_zero_label:
        before = np.where((stored == 0) | (stored == 255), 255, stored - 1)
    labels = before.copy()
    for old, new in (dataset.label_map or {}).items():
        labels[before == old] = new
    return labels


def _missing_files(folder: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are not in ``folder``; each subfolder is listed once, which network disks prefer."""
    places = {name: osp.split(osp.join(folder, name)) for name in names}
    folders = filter(osp.isdir, {place[0] for place in places.values()})
    there = {(path, file) for path in folders for file in os.listdir(path)}
    return [name for name, place in places.items() if place not in there]


def _evenly_spaced(items: list[str], limit: int | None) -> list[str]:
    """At most ``limit`` of the ``items``, spread over all of them (``None``: all)."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _decoded(
    dataset: Any, names: list[str], report: DataReport, **suffixes: str
) -> Iterator[tuple[Any, ...]]:
    """Each name with the pixels of its files, by folder and suffix; a file that cannot be decoded is a problem."""
    faults = []
    for name in names:
        pixels = []
        for key, end in suffixes.items():
            try:
                path = osp.join(dataset.data_prefix[key], name + end)
                pixels.append(_read_image(path, label_map=key == 'seg_map_path'))
            except ValueError as error:
                faults.append(f'{name}{end} ({error})')
        if len(pixels) == len(suffixes):
            yield name, *pixels
    report.refuse(faults, 'files cannot be decoded')


def _read_image(path: str, *, label_map: bool) -> np.ndarray:
    """The pixels of an image as stored (no EXIF rotation), (H, W) class indices of a label map; else ValueError."""
    if not osp.getsize(path):
        raise ValueError('the file is empty')
    pixels: np.ndarray | None
    try:
        with Image.open(path) as image:
            pixels = np.array(image)
    except UnidentifiedImageError:
        # OpenCV reads some kinds of TIFF that Pillow does not; upstream reads label maps with Pillow alone.
        pixels = None if label_map else mmcv.imread(path, flag='unchanged')
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(str(error)) from error
    if pixels is None:
        raise ValueError('not an image')
    if label_map and pixels.ndim != 2:
        raise ValueError(
            f'{pixels.shape[-1]} channels; a label map has one, the class index of each pixel'
        )
    return pixels.astype(np.int64) if label_map else pixels
