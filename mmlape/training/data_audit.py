"""Is a data set what its config says it is? COCO files, label maps, and the files that they name."""

from __future__ import annotations

import io
import json
import math
import os
import os.path as osp
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import mmcv
import numpy as np
from mmengine import fileio
from PIL import Image, UnidentifiedImageError

from mmlape.checks import nearest

_KEYS = {
    'images': ('id', 'file_name', 'height', 'width'),
    'annotations': ('id', 'image_id', 'category_id', 'bbox', 'area'),
    'categories': ('id', 'name'),
}
# More boxes than that in one image need gigabytes in MMDetection's assigners.
_MANY_BOXES = 1000
# Annotation tools round: a box may reach this many pixels beyond its image without being counted.
_TOLERANCE = 1.0


def listed(items: Iterable, limit: int = 5) -> str:
    """Quote at most ``limit`` items and say how many more there are: ``'a', 'b' and 3 more``."""
    items = list(items)
    text = ', '.join(repr(item) for item in items[:limit])
    return f'{text} and {len(items) - limit} more' if len(items) > limit else text


def repeated(values: Iterable) -> list:
    """The values that come more than once."""
    return [value for value, times in Counter(values).items() if times > 1]


@dataclass
class DataReport:
    """Problems (training must not start) and notes (what upstream skips, and why) of one data set."""

    title: str
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def refuse(self, items: Sequence, what: str) -> None:
        """Record the problem ``N what: examples`` if there are items."""
        if items:
            self.problems.append(f'{len(items)} {what}: {listed(items)}')

    def note(self, items: Sequence, what: str) -> None:
        """Record the note ``N what: examples`` if there are items."""
        if items:
            self.notes.append(f'{len(items)} {what}: {listed(items)}')

    def has_no_folder(self, path: str, what: str, backend_args: dict | None) -> bool:
        """Record a problem and return True when the folder ``path`` does not exist."""
        if not is_local(path, backend_args) or osp.isdir(path):
            return False
        parent = osp.abspath(path)
        while not osp.isdir(parent):
            parent = osp.dirname(parent)
        folders = sorted(entry.name for entry in os.scandir(parent) if entry.is_dir())
        holds = f'holds the folders {listed(folders, 10)}' if folders else 'holds no folder'
        self.problems.append(f'the {what} {path!r} does not exist; {parent!r} {holds}')
        return True


def is_local(path: str, backend_args: dict | None) -> bool:
    """Whether ``path`` is on a file system, where looking for a file is cheap."""
    backend = fileio.get_file_backend(path, backend_args=backend_args)
    return isinstance(backend, fileio.LocalBackend)


def check_coco(dataset: Any, report: DataReport, *, masks: bool, max_decode: int | None) -> None:
    """Check a ``mmdet.datasets.CocoDataset``, which need not be initialised; ``masks``: its pipeline loads them."""
    content = _read_coco(dataset, report)
    if content is None:
        return
    images, folder = content['images'], dataset.data_prefix['img']
    _check_entries(list(dataset.metainfo['classes']), content, report)
    report.has_no_folder(folder, 'image folder', dataset.backend_args)
    if report.problems:
        return
    _check_boxes(dataset, content, report, masks)
    sizes = {image['file_name']: (image['height'], image['width']) for image in images}
    missing = _missing_files(folder, sizes, dataset.backend_args)
    report.refuse(missing, f'of {len(images)} images are not in {folder!r}')
    if not is_local(folder, dataset.backend_args):
        report.notes.append('the images are on remote storage, so their files were not looked for')
    sample = _evenly_spaced([name for name in sizes if name not in set(missing)], max_decode)
    corrupt, other_size = [], []
    for name in sample:
        try:
            height, width = _read_image(dataset, 'img', name).shape[:2]
        except ValueError as error:
            corrupt.append(str(error))
            continue
        if (height, width) != sizes[name]:
            other_size.append(f'{name} ({width} x {height})')
    report.refuse(corrupt, 'images cannot be decoded')
    report.note(other_size, 'images have another size than the annotation file says')
    report.notes.append(f'decoded {len(sample)} of {len(images)} images')


def _read_coco(dataset: Any, report: DataReport) -> dict | None:
    """The annotation file, if it holds lists of objects with all keys that MMDetection reads."""
    path, backend_args = dataset.ann_file, dataset.backend_args
    if not fileio.exists(path, backend_args=backend_args):
        if not report.has_no_folder(osp.dirname(path), 'annotation folder', backend_args):
            report.problems.append(f'the annotation file {path!r} does not exist')
        return None
    data = fileio.get(path, backend_args=backend_args)
    try:
        content = json.loads(data)
    except ValueError as error:
        what = f'is not JSON: {error}' if data.strip() else 'is empty'
        report.problems.append(f'the annotation file {path!r} {what}')
        return None
    for section, keys in _KEYS.items():
        entries = content.get(section) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not entries:
            what = 'is empty' if entries == [] else 'is missing, or is not a list'
            report.problems.append(f'the list {section!r} of the annotation file {what}')
            continue
        strange = [entry for entry in entries if not isinstance(entry, dict)]
        report.refuse(strange, f'entries of {section!r} are not objects')
        for key in () if strange else keys:
            without = [entry.get('id') for entry in entries if key not in entry]
            report.refuse(without, f'entries of {section!r} have no {key!r}; ids')
    return None if report.problems else content


def _check_entries(classes: list[str], content: dict, report: DataReport) -> None:
    images, boxes = content['images'], content['annotations']
    names = [category['name'] for category in content['categories']]
    for what, values in (
        ('class names', classes),
        ('categories of the annotation file', names),
        ("ids of 'images'", [image['id'] for image in images]),
        ("ids of 'annotations'", [box['id'] for box in boxes]),
        ("file names of 'images'", [image['file_name'] for image in images]),
    ):
        report.refuse(repeated(values), f'{what} appear more than once')
    unknown = [name for name in classes if name not in names]
    close = {name: nearest(name, names) for name in unknown}
    hint = ''.join(f'; did you mean {near!r} for {name!r}?' for name, near in close.items() if near)
    if unknown:
        what = f'{len(unknown)} of {len(classes)} class names are not categories of the annotation'
        file = f'the file has {listed(names, 100)}{hint}'
        report.problems.append(f'{what} file: {listed(unknown)}; {file}')
    # MMDetection numbers the labels in the order of the file, not in that of the class names.
    order = [name for name in names if name in classes]
    if not unknown and order != classes:
        report.problems.append(
            'the class names are not in the order of the annotation file, so MMDetection would '
            f'give boxes the wrong names: write them as {",".join(order)!r}'
        )
    sides = {image['file_name']: (image['width'], image['height']) for image in images}
    wrong = [name for name, size in sides.items() if any(type(n) is not int or n < 1 for n in size)]
    report.refuse(wrong, 'images have a width or height that is no integer above 0')
    broken = [
        f'{box["id"]} ({box["bbox"]}, area {box["area"]})'
        for box in boxes
        if not _are_numbers(box['bbox'], 4) or not _are_numbers([box['area']])
    ]
    report.refuse(broken, 'boxes or areas are not finite numbers (4 and 1); ids')


def _are_numbers(values: Any, count: int | None = None) -> bool:
    return (
        isinstance(values, (list, tuple))
        and len(values) == (len(values) if count is None else count)
        and all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    )


def _check_boxes(dataset: Any, content: dict, report: DataReport, masks: bool) -> None:
    """What is refused, and how many MMDetection leaves out for which reason (``CocoDataset.parse_data_info``)."""
    boxes, classes = content['annotations'], list(dataset.metainfo['classes'])
    names = {entry['id']: entry['name'] for entry in content['categories']}
    images = {image['id']: image for image in content['images']}
    homes = [images.get(box['image_id'], content['images'][0]) for box in boxes]
    x, y, w, h = np.array([box['bbox'] for box in boxes], dtype=float).T
    width, height = np.array([(home['width'], home['height']) for home in homes]).T
    area = np.array([box['area'] for box in boxes])
    outside = (np.minimum(x + w, width) <= np.maximum(x, 0)) | (
        np.minimum(y + h, height) <= np.maximum(y, 0)
    )
    skipped = {
        'of an image that the file does not list': [b['image_id'] not in images for b in boxes],
        'marked "ignore"': [bool(box.get('ignore')) for box in boxes],
        'outside the image': outside,
        'smaller than one pixel, or of no area': (area <= 0) | (w < 1) | (h < 1),
        'of a category that the file does not list': [b['category_id'] not in names for b in boxes],
        'of a category that is not among the class names': [
            names.get(box['category_id']) not in classes for box in boxes
        ],
    }
    reasons = np.select([*map(np.array, skipped.values())], [*skipped], '')
    used = [box for box, reason in zip(boxes, reasons, strict=True) if not reason]
    per_class = Counter(names[box['category_id']] for box in used)
    numbers = ', '.join(f'{name} {per_class[name]}' for name in classes[:20])
    report.notes.append(f'{len(images)} images, {len(used)} usable boxes ({numbers})')
    for reason, number in Counter(reasons[reasons != ''].tolist()).items():
        report.notes.append(f'{number} boxes are skipped by MMDetection: {reason}')
    crowds = [box['id'] for box in used if box.get('iscrowd')]
    report.note(crowds, 'boxes mark crowds, which MMDetection ignores; ids')
    over = np.max([-x, -y, x + w - width, y + h - height], 0) > _TOLERANCE
    beyond = [box['id'] for box, out in zip(boxes, over & (reasons == ''), strict=True) if out]
    wrong = len(beyond) + (reasons == 'outside the image').sum()
    if wrong > len(boxes) / 2:
        report.problems.append(
            f'{wrong} of {len(boxes)} boxes reach beyond their image; COCO boxes are '
            '[x, y, width, height] in pixels of the image, not [x1, y1, x2, y2]'
        )
    else:
        what = 'boxes reach beyond their image and are clipped by MMDetection; annotation ids'
        report.note(beyond, what)
    if masks:
        faults = {box['id']: _mask_fault(box, images[box['image_id']]) for box in used}
        wrong = [f'{number} ({fault})' for number, fault in faults.items() if fault]
        report.refuse(wrong, 'boxes have no mask that can be read; annotation ids')
    per_image = Counter(images[box['image_id']]['file_name'] for box in used)
    many = [f'{name} ({number})' for name, number in per_image.items() if number > _MANY_BOXES]
    report.note(many, f'images have more than {_MANY_BOXES} boxes: much memory')
    if not used:
        report.problems.append('no usable box is left')
    _note_filtered_images(dataset, content, report)


def _mask_fault(box: dict, image: dict) -> str | None:
    """Why a mask ends a training when its image comes: MMDetection does not read it before."""
    mask, size = box.get('segmentation'), [image['height'], image['width']]
    if isinstance(mask, dict):
        fits = 'counts' in mask and list(mask.get('size') or ()) == size
        return None if fits else f'run lengths of size {mask.get("size")}, image {size}'
    if not mask or not isinstance(mask, list):
        return f'a {type(mask).__name__}' if mask else 'no segmentation'
    return None if all(map(_are_numbers, mask)) else 'a polygon is not a list of finite numbers'


def _note_filtered_images(dataset: Any, content: dict, report: DataReport) -> None:
    config, images = {} if dataset.test_mode else dataset.filter_cfg or {}, content['images']
    names = {entry['id']: entry['name'] for entry in content['categories']}
    known = set(dataset.metainfo['classes'])
    used = {b['image_id'] for b in content['annotations'] if names.get(b['category_id']) in known}
    empty = [image['file_name'] for image in images if image['id'] not in used]
    if config.get('filter_empty_gt'):
        report.note(empty, 'images are skipped by MMDetection: no box of these classes')
    least = config.get('min_size', 0)
    small = [i['file_name'] for i in images if min(i['width'], i['height']) < least]
    report.note(small, f'images are skipped by MMDetection: a side under {least}')


def check_label_maps(
    dataset: Any, report: DataReport, *, squeezes: bool, max_decode: int | None
) -> None:
    """Check a ``mmseg.datasets.BaseSegDataset``, which need not be initialised.

    ``squeezes``: its pipeline loads maps with MMSegmentation's ``LoadAnnotations``, which drops sides of 1 pixel.
    """
    backend_args, list_file, suffix = dataset.backend_args, dataset.ann_file, dataset.seg_map_suffix
    images, maps = (dataset.data_prefix.get(key) for key in ('img_path', 'seg_map_path'))
    for path, what in ((images, 'image folder'), (maps, 'label map folder')):
        if path is None:
            report.problems.append(f'data_prefix names no {what}')
        else:
            report.has_no_folder(path, what, backend_args)
    if list_file and not fileio.exists(list_file, backend_args=backend_args):
        report.problems.append(f'the list of images {list_file!r} does not exist')
    if report.problems:
        return
    report.refuse(repeated(dataset.metainfo['classes']), 'class names appear more than once')
    paths = [entry['img_path'][len(osp.join(images, '')) :] for entry in dataset.load_data_list()]
    names = [path.removesuffix(dataset.img_suffix) for path in paths]
    if list_file and not names:
        report.problems.append(f'the list of images {list_file!r} is empty')
    elif not list_file:
        _note_unused_files(dataset, images, maps, set(names), report)
    missing = _missing_files(images, paths, backend_args)
    report.refuse(missing, f'listed images are not in {images!r}')
    without = _missing_files(maps, [name + suffix for name in names], backend_args)
    report.refuse(without, f'of {len(names)} images have no label map; not in {maps!r}')
    gone = {*missing, *without}
    names = [name for name in names if not gone & {name + dataset.img_suffix, name + suffix}]
    if names:
        sample = _evenly_spaced(names, max_decode)
        report.notes.append(f'{len(names)} images with label maps; decoded {len(sample)}')
        _check_labels(dataset, sample, squeezes, report)


def _note_unused_files(
    dataset: Any, images: str, maps: str, names: set[str], report: DataReport
) -> None:
    """Files that MMSegmentation does not take, because of their ending or because their partner is missing."""
    files, found = (
        sorted(fileio.list_dir_or_file(f, False, recursive=True, backend_args=dataset.backend_args))
        for f in (images, maps)
    )
    suffix, map_suffix = dataset.img_suffix, dataset.seg_map_suffix
    others = [file for file in files if not file.endswith(suffix)]
    if not names:
        kinds = Counter(osp.splitext(file)[1] for file in others)
        holds = listed(f'{number} x {kind}' for kind, number in kinds.most_common()) or 'no file'
        report.problems.append(f'no file in {images!r} ends in {suffix!r}; it holds {holds}')
        return
    report.note(others, f'files in {images!r} are skipped: they do not end in {suffix!r}')
    rivals = [file for file in others if osp.splitext(file)[0] in names]
    what = f'of these have the name of an image that ends in {suffix!r}, which is taken'
    report.note(rivals, what)
    found = [file for file in found if file.endswith(map_suffix)]
    unused = [file for file in found if file.removesuffix(map_suffix) not in names]
    report.note(unused, 'label maps are skipped: no image of that name')


def _check_labels(dataset: Any, sample: list[str], squeezes: bool, report: DataReport) -> None:
    """Decode images and label maps, and compare their sizes and values."""
    classes, ignored = list(dataset.metainfo['classes']), dataset.ignore_index
    corrupt, other_size, thin, blank = [], [], [], []
    wrong: dict[int, list[str]] = defaultdict(list)
    seen: set[int] = set()
    for name in sample:
        try:
            height, width = _read_image(dataset, 'img_path', name + dataset.img_suffix).shape[:2]
            file = name + dataset.seg_map_suffix
            stored = _read_image(dataset, 'seg_map_path', file, label_map=True)
        except ValueError as error:
            corrupt.append(str(error))
            continue
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
    report.refuse(corrupt, 'files cannot be decoded')
    report.refuse(other_size, 'label maps have another size than their image')
    what = "label maps have a side of 1 pixel, which MMSegmentation's LoadAnnotations drops"
    report.refuse(thin, what)
    for value, files in sorted(wrong.items()):
        options = (
            f'the ignored label is {ignored}, reduce_zero_label is {dataset.reduce_zero_label}'
        )
        what = f'which is no class (there are {len(classes)} class names, {options})'
        report.refuse(files, f'label maps hold the value {value}, {what}')
    record = report.refuse if len(blank) == len(sample) else report.note
    record(blank, 'label maps hold nothing but the ignored label')
    absent = [name for index, name in enumerate(classes) if index not in seen]
    report.note(absent, 'classes are in none of the decoded label maps')


def _labels(dataset: Any, stored: np.ndarray) -> np.ndarray:
    """The labels that the loss will see, from those in the file (in MMSegmentation's order)."""
    labels = stored
    if dataset.reduce_zero_label:
        labels = np.where((stored == 0) | (stored == 255), 255, stored - 1)
    before, labels = labels, labels.copy()
    for old, new in (dataset.label_map or {}).items():
        labels[before == old] = new
    return labels


def _missing_files(folder: str, names: Iterable[str], backend_args: dict | None) -> list[str]:
    """The ``names`` that are not in ``folder``; each subfolder is listed once, remote storage is not checked."""
    if not is_local(folder, backend_args):
        return []
    places = {name: osp.split(osp.join(folder, name)) for name in names}
    folders = filter(osp.isdir, {place[0] for place in places.values()})
    there = {(path, file) for path in folders for file in os.listdir(path)}
    return [name for name, place in places.items() if place not in there]


def _evenly_spaced(items: list[str], limit: int | None) -> list[str]:
    """At most ``limit`` of the ``items``, spread over all of them (``None``: all)."""
    count = len(items) if limit is None else min(limit, len(items))
    return [items[index * len(items) // count] for index in range(count)]


def _read_image(dataset: Any, prefix: str, name: str, *, label_map: bool = False) -> np.ndarray:
    """The pixels of a whole image as stored (no EXIF rotation), or (H, W) class indices of a label map.

    Raises:
        ValueError: With the file's name, if it is empty, truncated, not an image, one of more than 179 million pixels
            (Pillow's limit), or a label map with colours.
    """
    path, error = osp.join(dataset.data_prefix[prefix], name), ''
    content = fileio.get(path, backend_args=dataset.backend_args)
    pixels: np.ndarray | None = None
    try:
        image = Image.open(io.BytesIO(content))
        image.load()
        pixels = np.asarray(image)
    except UnidentifiedImageError:
        # OpenCV reads some kinds of TIFF that Pillow does not; upstream reads label maps with Pillow alone.
        if content and not label_map:
            pixels = mmcv.imfrombytes(content, flag='unchanged')
        error = 'not an image' if content else 'the file is empty'
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as fault:
        error = str(fault)
    if pixels is not None and label_map and pixels.ndim != 2:
        error = f'{pixels.shape[-1]} channels; a label map has one, the class index of each pixel'
    elif pixels is not None:
        return pixels.astype(np.int64) if label_map else pixels
    raise ValueError(f'{name} ({error})')
