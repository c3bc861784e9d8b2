"""Checks of data sets on the local disk: COCO files, label maps, and the files that they name."""

from __future__ import annotations

import codecs
import json
import os
import os.path as osp
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mmengine import fileio
from PIL import Image, ImageOps, UnidentifiedImageError

from mmlape.checkpoints.report import listed
from mmlape.checks import are_numbers, did_you_mean
from mmlape.pixels import ARRAYS, MOST_PIXELS, TIFFS, read_pixels

from .coco_evaluation import check_evaluated, is_drawn, is_list_of_numbers, mask_fault
from .data_sizes import check_sizes, no_part_inside, too_narrow

_MOST_SIDE = 2**31  # pixels, or ids in floats: what NumPy and PyTorch index with


def _is_id(value: Any) -> bool:
    if isinstance(value, float):  # of a table's column
        return value.is_integer() and abs(value) < _MOST_SIDE
    return isinstance(value, str) or (type(value) is int and abs(value) < 2**63)


def _is_box(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 4 and are_numbers(value, MOST_PIXELS)


_ID = _is_id, 'an integer or a text'
_NAME = (lambda value: isinstance(value, str) and value != ''), 'a text'
_SIDE = (lambda value: type(value) is int and 0 < value < _MOST_SIDE), 'an integer above 0'
_BOX = _is_box, 'four finite numbers, below 1e9'
_AREA = (lambda value: are_numbers([value])), 'a finite number'
# Entries that MMDetection reads: which values are valid, and what they are in words.
COCO_ENTRIES: dict[str, dict[str, tuple[Callable[[Any], bool], str]]] = {
    'images': dict(id=_ID, file_name=_NAME, height=_SIDE, width=_SIDE),
    'annotations': dict(id=_ID, image_id=_ID, category_id=_ID, bbox=_BOX, area=_AREA),
    'categories': dict(id=_ID, name=_ID),
}
_FOLDERS = dict(img='image folder', img_path='image folder', seg_map_path='label map folder')
_MANY_BOXES = 1000  # in one image: MMDetection's assigners need gigabytes for more
_DARK = 'images of 16 bits are nearly black: upstream keeps the upper 8; scale them to 8 bits'
_THIN = "label maps have a side of 1 pixel, which MMSegmentation's LoadAnnotations drops"
_NARROW = 'images are so narrow that the pipeline resizes them to nothing: crop or remove them'
_TOLERANCE = 1.0  # pixels beyond the image that are not counted: annotation tools round


def repeated(values: Iterable) -> list:
    """The values that occur more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


@dataclass
class DataReport:
    """Problems (training must not start) and notes (what upstream skips, and why) of one data set; of each class, how
    many ``images`` it is in (under '' all that were counted) and its ``objects``, boxes or pixels."""

    title: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    images: Counter[str] = field(default_factory=Counter)
    objects: Counter[str] = field(default_factory=Counter)

    def refuse(self, items: Sequence, what: str) -> None:
        """Add the problem ``N what: examples`` if there are items."""
        if items:
            self.problems.append(f'{len(items)} {what}: {listed(map(repr, items), 5)}')

    def note(self, items: Sequence, what: str) -> None:
        """Add the note ``N what: examples`` if there are items."""
        if items:
            self.notes.append(f'{len(items)} {what}: {listed(map(repr, items), 5)}')

    def look_for(self, config: Mapping[str, Any]) -> None:
        """Add a problem for each missing folder and file of a data set; for ``data_root`` alone, if that is missing."""
        root, prefix = config.get('data_root') or '', config.get('data_prefix') or {}
        folders = prefix if isinstance(prefix, Mapping) else {'': prefix}
        places = {_FOLDERS.get(key, f'{key} folder'.strip()): name for key, name in folders.items()}
        places['annotation file'] = config.get('ann_file')
        if not osp.exists(root or '.'):
            places = {'data folder': ''}
        for what, name in places.items():
            if isinstance(name, str) and not osp.exists(path := str(Path(root, name))):
                self.problems.append(f'the {what} {path!r} does not exist')


def check_coco(
    dataset: Any,
    report: DataReport,
    *,
    masks: bool,
    max_decode: int | None,
    boxes: bool = True,
    evaluated: tuple[str, ...] = (),
    turns: bool = True,
    steps: Sequence[Any] = (),
) -> None:
    """Check a ``mmdet.datasets.CocoDataset`` that may be lazy; ``masks`` and ``boxes``: its pipeline loads them.

    ``evaluated``: what pycocotools evaluates with the same file, such as ``'bbox'`` and ``'segm'``; ``turns``: images
    are turned as their EXIF data say; ``steps``: its pipeline.
    """
    content, folder = _read_coco(dataset.ann_file, report, boxes), dataset.data_prefix['img']
    if not report.problems:
        _check_classes(list(dataset.metainfo['classes']), content['categories'], report)
    if report.problems:
        return
    if boxes:
        _check_boxes(dataset, content, report, masks and 'segm' not in evaluated)
    if boxes and evaluated:
        check_evaluated(content, report, 'segm' in evaluated)
    sizes = {image['file_name']: (image['height'], image['width']) for image in content['images']}
    gone = set(missing := _missing_files(folder, sizes))
    report.refuse(missing, f'of {len(sizes)} images are not in {folder!r}')
    sample = evenly_spaced([name for name in sizes if name not in gone], max_decode)
    report.notes.append(f'decoded {len(sample)} of {len(sizes)} images')
    faults, dark = list[str](), list[str]()
    decoded: dict[str, tuple[int, int]] = {}
    for name in sample:
        image = _read_image(folder, name, faults, turns=turns)
        if image is not None:
            decoded[name] = image.shape[0], image.shape[1]
        if image is not None and _is_dark(image):
            dark.append(name)
    report.refuse(faults, 'files cannot be decoded')
    report.note(dark, _DARK)
    check_sizes(content if boxes else {**content, 'annotations': []}, decoded, folder, report)
    least = 0 if dataset.test_mode else (dataset.filter_cfg or {}).get('min_size', 0)
    kept = {name: size for name, size in {**sizes, **decoded}.items() if min(sizes[name]) >= least}
    report.refuse(too_narrow(kept, steps), _NARROW)


def _read_coco(path: str, report: DataReport, boxes: bool) -> dict:
    """The annotation file: without a problem, lists of objects with all keys that MMDetection reads."""
    data = Path(path).read_bytes()
    try:
        # As text: pycocotools takes no byte order mark, and no UTF-16, which the module would take as bytes.
        content = json.loads(data.decode())
    except ValueError as error:
        what = f'is not JSON: {error}' if data.strip() else 'is empty'
        if data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            what = 'begins with a byte order mark: save it as UTF-8 without one'
        report.problems.append(f'the annotation file {path!r} {what}')
        return {}
    for section, rules in COCO_ENTRIES.items():
        if section == 'annotations' and not boxes:
            continue
        entries = content.get(section) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            what = 'is empty' if entries == [] else 'is missing, or is not a list'
            report.problems.append(f'the list {section!r} of the annotation file {what}')
            continue
        strange = [entry for entry in entries if not isinstance(entry, dict)]
        report.refuse(strange, f'entries of {section!r} are not objects')
        for key, (valid, what) in rules.items() if not strange else ():
            if without := [entry.get('id') for entry in entries if key not in entry]:
                report.refuse(without, f'entries of {section!r} have no {key!r}; ids')
                continue
            wrong = [
                f'{entry.get("file_name", entry.get("id"))} ({entry[key]!r})'
                for entry in entries
                if not valid(entry[key])
            ]
            report.refuse(wrong, f'values of {key!r} in {section!r} are not {what}; name or id')
            if key in ('id', 'file_name', 'name') and not wrong:
                twice = repeated(entry[key] for entry in entries)
                report.refuse(twice, f'values of {key!r} in {section!r} appear more than once')
    return content


def _check_classes(classes: list[str], categories: list[dict], report: DataReport) -> None:
    names = [category['name'] for category in categories]
    # MMDetection numbers the labels in the order of the file, not in that of the class names.
    order = [name for name in names if name in classes]
    if unknown := [name for name in classes if name not in names]:
        hints = ''.join(did_you_mean(name, names) for name in unknown)
        report.problems.append(
            f'{len(unknown)} of {len(classes)} class names are not categories of the annotation '
            f'file: {listed(map(repr, unknown), 5)}; the file has {listed(map(repr, names), 100)}{hints}'
        )
    elif order != classes:
        report.problems.append(
            'the class names are not in the order of the annotation file, so MMDetection would '
            f'give boxes the wrong names: write them as {",".join(order)!r}'
        )


def _check_boxes(dataset: Any, content: dict, report: DataReport, masks: bool) -> None:
    """Report boxes that are refused, and how many MMDetection skips and why (``CocoDataset.parse_data_info``)."""
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
        'without a polygon of three points or more': [masks and _has_no_polygon(b) for b in boxes],
    }
    reasons = np.select([*map(np.array, skipped.values())], [*skipped], '')
    kept = [box for box, reason in zip(boxes, reasons) if not reason]
    used = [box for box in kept if not box.get('iscrowd')]
    report.objects.update(names[box['category_id']] for box in used)
    pairs = {(box['image_id'], names[box['category_id']]) for box in used}
    report.images.update(name for _, name in pairs)
    report.images[''] = len(images)
    numbers = ', '.join(f'{name} {report.objects[name]}' for name in classes[:20])
    count = f'{len(images)} image{"s" * (len(images) != 1)}'
    report.notes.append(f'{count}, {len(used)} usable boxes ({numbers})')
    gone = Counter(reasons[reasons != ''].tolist())
    told = [
        f'{number} boxes are skipped by MMDetection: {reason}' for reason, number in gone.items()
    ]
    report.notes += told
    strange = [box['id'] for box in boxes if box.get('iscrowd') not in (None, 0, 1)]
    report.refuse(strange, "values of 'iscrowd' are neither 0 nor 1; ids of boxes")
    crowds = [box['id'] for box in kept if box.get('iscrowd')]
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
    if not dataset.test_mode:
        empty = no_part_inside(np.hstack([start, size]), limit) & (reasons == '')
        _refuse_slivers(boxes, homes, empty, report)
    if not used:
        told += [f"{len(crowds)} boxes mark crowds ('iscrowd': 1)"] if crowds else []
        report.problems.append(f'no usable box is left: {"; ".join(told)}')
    if masks:
        _check_masks(kept, images, report)
    per_image = Counter(images[box['image_id']]['file_name'] for box in kept)
    many = [f'{name} ({number})' for name, number in per_image.items() if number > _MANY_BOXES]
    report.note(many, f'images have more than {_MANY_BOXES} boxes: much memory')
    labelled = {box['image_id'] for box, kind in zip(boxes, kinds) if kind in classes}
    _note_skipped_images(dataset, content['images'], labelled, report)


def _refuse_slivers(boxes: list, homes: list, empty: np.ndarray, report: DataReport) -> None:
    texts = [f'{box["id"]} ({home["file_name"]})' for box, home, e in zip(boxes, homes, empty) if e]
    report.refuse(texts, 'boxes have no width or height left inside their image, in float32; ids')


def _check_masks(boxes: list, images: Mapping, report: DataReport) -> None:
    shapes = {key: (image['height'], image['width']) for key, image in images.items()}
    faults = [
        (box['id'], mask_fault(box.get('segmentation'), shapes[box['image_id']])) for box in boxes
    ]
    unread = [f'{number} ({fault})' for number, fault in faults if fault]
    report.refuse(unread, 'boxes have no mask that can be read; ids')


def _is_dark(image: np.ndarray) -> bool:
    return image.dtype.itemsize > 1 and image.max(initial=0) < 2**14


def _has_no_polygon(box: dict) -> bool:
    mask: Any = box.get('segmentation')
    lists = isinstance(mask, list) and mask and all(map(is_list_of_numbers, mask))
    return bool(lists) and not any(map(is_drawn, mask))


def _note_skipped_images(dataset: Any, images: list, labelled: set, report: DataReport) -> None:
    config = {} if dataset.test_mode else dataset.filter_cfg or {}
    empty = [image['file_name'] for image in images if image['id'] not in labelled]
    if config.get('filter_empty_gt'):
        report.note(empty, 'images are skipped by MMDetection: no box of these classes')
    least = config.get('min_size', 0)
    small = [i['file_name'] for i in images if min(i['width'], i['height']) < least]
    report.note(small, f'images are skipped by MMDetection: a side under {least}')


def check_label_maps(
    dataset: Any,
    report: DataReport,
    *,
    squeezes: bool,
    max_decode: int | None,
    turns: bool = True,
    steps: Sequence[Any] = (),
) -> None:
    """Check a ``mmseg.datasets.BaseSegDataset`` that may be lazy.

    ``squeezes``: its pipeline loads maps with MMSegmentation's ``LoadAnnotations``, which drops sides of 1 pixel;
    ``turns``: images are turned as their EXIF data say, as label maps never are; ``steps``: that pipeline.
    """
    images, maps = (dataset.data_prefix.get(key) for key in ('img_path', 'seg_map_path'))
    if not (images and maps):
        report.problems.append('data_prefix needs both folders, img_path and seg_map_path')
        return
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
        sample = evenly_spaced(names, max_decode)
        report.notes.append(f'{len(names)} images with label maps; decoded {len(sample)}')
        decoded = _check_labels(dataset, sample, squeezes, report, turns)
        report.refuse(too_narrow(decoded, steps), _NARROW)


def _note_unused_files(dataset: Any, names: set[str], report: DataReport) -> None:
    """Files that MMSegmentation ignores, because of their ending or because their partner is missing."""
    suffix, map_suffix = dataset.img_suffix, dataset.seg_map_suffix
    images, maps = (dataset.data_prefix[key] for key in ('img_path', 'seg_map_path'))
    files = partial(fileio.list_dir_or_file, list_dir=False, recursive=True)
    others = sorted(file for file in files(images) if not file.endswith(suffix))
    if not names:
        others_named = f'there are {listed(map(repr, others), 5)}' if others else 'it is empty'
        report.problems.append(f'no file in {images!r} ends in {suffix!r}; {others_named}')
        return
    report.note(others, f'files in {images!r} are skipped: they do not end in {suffix!r}')
    found = files(maps, suffix=map_suffix)
    unused = sorted(file for file in found if file.removesuffix(map_suffix) not in names)
    report.note(unused, 'label maps are skipped: no image of that name')


def _check_labels(
    dataset: Any, sample: list[str], squeezes: bool, report: DataReport, turns: bool
) -> dict[str, tuple[int, int]]:
    """Decode images and label maps, and compare their sizes and values; returns the images' heights and widths."""
    classes, ignored = list(dataset.metainfo['classes']), dataset.ignore_index
    images, maps = (dataset.data_prefix[key] for key in ('img_path', 'seg_map_path'))
    options = f'the ignored label is {ignored}, reduce_zero_label is {dataset.reduce_zero_label}'
    no_class = f'which is not a class (there are {len(classes)} class names, {options})'
    found: dict[str, list[str]] = defaultdict(list)
    blank, dark = list[str](), list[str]()
    seen: set[int] = set()
    decoded: dict[str, tuple[int, int]] = {}
    for name in sample:
        file, faults = name + dataset.seg_map_suffix, found['files cannot be decoded']
        image = _read_image(images, name + dataset.img_suffix, faults, turns=turns)
        stored = _read_image(maps, file, faults, label_map=True)
        if image is not None:
            decoded[name + dataset.img_suffix] = image.shape[0], image.shape[1]
        if image is None or stored is None:
            continue
        if _is_dark(image):
            dark.append(name + dataset.img_suffix)
        if stored.shape != image.shape[:2]:
            sizes = '{1} x {0}, image {3} x {2}'.format(*stored.shape, *image.shape[:2])
            found['label maps have another size than their image'].append(f'{file} ({sizes})')
        if squeezes and 1 in stored.shape:
            found[_THIN].append(file)
        values, pixels = (each.astype(int) for each in np.unique(stored, return_counts=True))
        labels = {value: _label(dataset, value) for value in values.tolist()}
        used = {value: label for value, label in labels.items() if label != ignored}
        for value in (v for v, label in used.items() if not 0 <= label < len(classes)):
            found[f'label maps hold the value {value}, {no_class}'].append(file)
        if max(labels, default=0) > 255:
            found['label maps hold values above 255, of which upstream reads 8 bits'].append(file)
        seen.update(used.values())
        known = [label for label in {*used.values()} if 0 <= label < len(classes)]
        report.images.update(['', *(classes[label] for label in known)])
        for label, number in zip(labels.values(), pixels.tolist()):
            if label in known:
                report.objects[classes[label]] += number
        if not used:
            blank.append(file)
    for what, files in found.items():
        report.refuse(files, what)
    report.note(dark, _DARK)
    record = report.refuse if len(blank) == len(sample) else report.note
    record(blank, 'label maps hold nothing but the ignored label')
    absent = [name for index, name in enumerate(classes) if index not in seen]
    report.note(absent, 'of the classes in none of the decoded label maps')
    return decoded


def _label(dataset: Any, value: int) -> int:
    """The label that the loss sees of a stored one (in MMSegmentation's order)."""
    if dataset.reduce_zero_label:
        value = 255 if value in (0, 255) else value - 1
    return (dataset.label_map or {}).get(value, value)


def _missing_files(folder: str, names: Iterable[str]) -> list[str]:
    """The ``names`` that are not in ``folder``; each subfolder is listed once, which network disks prefer."""
    parts = {name: osp.split(osp.join(folder, name)) for name in names}
    folders = filter(osp.isdir, {part[0] for part in parts.values()})
    present = {(path, file) for path in folders for file in os.listdir(path)}
    return [name for name, part in parts.items() if part not in present]


def evenly_spaced(items: Sequence[Any], limit: int | None) -> list:
    """At most ``limit`` of the ``items``, spread over all of them (``None``: all)."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _read_image(
    folder: str, name: str, faults: list[str], *, label_map: bool = False, turns: bool = True
) -> np.ndarray | None:
    """The pixels of an image as upstream reads it, turned as its EXIF data say unless ``turns`` is False; of a label
    map as stored, (H, W); else None, and one more fault."""
    path = osp.join(folder, name)
    pixels: np.ndarray | None = None
    fault = 'not an image'
    try:
        with Image.open(path) as image:
            pixels = np.array(image if label_map or not turns else ImageOps.exif_transpose(image))
    except UnidentifiedImageError:
        if not osp.getsize(path):
            fault = 'the file is empty'
        elif not label_map:  # upstream reads label maps with Pillow alone
            try:
                pixels = read_pixels(path)  # some kinds of TIFF, arrays
            except ValueError as error:
                own = path.lower().endswith((*ARRAYS, *TIFFS))
                fault = str(error) if own else fault
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        fault = str(error)
    if pixels is not None and label_map and pixels.ndim != 2:
        fault = f'{pixels.shape[-1]} channels; a label map has one, the class index of each pixel'
        pixels = None
    if pixels is None:
        faults.append(f'{name} ({fault})')
    return pixels
