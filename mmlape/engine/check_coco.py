"""Is a COCO-format data set what its config says it is?"""

from __future__ import annotations

import json
import math
import os.path as osp
from collections import Counter
from difflib import get_close_matches

from mmengine.fileio import exists, get_text

from .data_files import evenly_spaced, image_size, is_local, missing_files, missing_folder
from .findings import Findings, listed

__all__ = ['check_coco']

_IMAGE_KEYS = ('id', 'file_name', 'height', 'width')
_BOX_KEYS = ('id', 'image_id', 'category_id', 'bbox', 'area')
_CATEGORY_KEYS = ('id', 'name')
# More boxes than that in one image need gigabytes in MMDetection's assigners.
_MANY_BOXES = 1000
# Annotation tools round: a box may stick out by this many pixels without being counted.
_TOLERANCE = 1.0


def check_coco(dataset, findings: Findings, *, with_mask: bool, max_decode: int | None) -> None:
    """Check a ``mmdet.datasets.CocoDataset``, which need not be initialised.

    Args:
        dataset: The data set; its paths, class names and filter are read.
        findings (Findings): Where problems and notes go.
        with_mask (bool): Whether its pipeline loads masks.
        max_decode (int | None): Number of images to decode, ``None`` for all.
    """
    content = _read(dataset, findings)
    if content is None:
        return
    _check_categories(dataset, content, findings)
    _check_ids(content, findings)
    folder = dataset.data_prefix['img']
    folder_missing = missing_folder(findings, folder, 'image folder', dataset.backend_args)
    if findings.problems:
        return
    _check_boxes(dataset, content, findings, with_mask=with_mask)
    if not folder_missing:
        _check_images(dataset, content['images'], findings, max_decode)


def _read(dataset, findings: Findings) -> dict | None:
    path = dataset.ann_file
    if not exists(path, backend_args=dataset.backend_args):
        folder = osp.dirname(path)
        if not missing_folder(findings, folder, 'annotation folder', dataset.backend_args):
            findings.problem(f'the annotation file {path!r} does not exist')
        return None
    text = get_text(path, backend_args=dataset.backend_args)
    if not text.strip():
        findings.problem(f'the annotation file {path!r} is empty')
        return None
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        findings.problem(f'the annotation file {path!r} is not JSON: {error}')
        return None
    _check_layout(content, findings)
    return None if findings.problems else content


def _check_layout(content, findings: Findings) -> None:
    if not isinstance(content, dict):
        findings.problem(f'the annotation file holds a {type(content).__name__}, not a COCO object')
        return
    for section, keys in (
        ('images', _IMAGE_KEYS),
        ('annotations', _BOX_KEYS),
        ('categories', _CATEGORY_KEYS),
    ):
        entries = content.get(section)
        if not isinstance(entries, list):
            findings.problem(f'the annotation file has no list {section!r}')
            continue
        if not entries:
            findings.problem(f'the list {section!r} of the annotation file is empty')
        strange = [entry for entry in entries if not isinstance(entry, dict)]
        findings.count(strange, f'entries of {section!r} are no objects', problem=True)
        if strange:
            continue
        for key in keys:
            without = [entry.get('id') for entry in entries if key not in entry]
            findings.count(without, f'entries of {section!r} have no {key!r}; ids', problem=True)


def _check_categories(dataset, content: dict, findings: Findings) -> None:
    classes = list(dataset.metainfo['classes'])
    names = [category.get('name') for category in content['categories']]
    for what, values in (('class names', classes), ('categories of the annotation file', names)):
        twice = [name for name, number in Counter(values).items() if number > 1]
        findings.count(twice, f'{what} appear more than once', problem=True)
    unknown = [name for name in classes if name not in names]
    if unknown:
        close = {
            name: match
            for name in unknown
            if (match := get_close_matches(str(name), map(str, names), 1, 0.6))
        }
        hint = ''.join(
            f'; did you mean {match[0]!r} for {name!r}?' for name, match in close.items()
        )
        findings.problem(
            f'{len(unknown)} of {len(classes)} class names are not categories of the annotation '
            f'file: {listed(unknown)}; the file has {listed(names, 100)}{hint}'
        )
        return
    # MMDetection numbers the labels in the order of the file, not in that of the class names.
    order = [name for name in names if name in classes]
    if order != classes:
        findings.problem(
            'the class names are not in the order of the annotation file, so MMDetection would '
            f'give boxes the wrong names: write them as {",".join(order)!r}'
        )


def _check_ids(content: dict, findings: Findings) -> None:
    for section in ('images', 'annotations'):
        numbers = Counter(entry['id'] for entry in content[section])
        twice = [number for number, times in numbers.items() if times > 1]
        findings.count(twice, f'ids of {section!r} appear more than once', problem=True)
    images = content['images']
    files = Counter(image['file_name'] for image in images)
    twice = [name for name, times in files.items() if times > 1]
    findings.count(
        twice,
        "files are those of more than one entry of 'images', which share the boxes out",
        problem=True,
    )
    sizeless = [
        image['file_name']
        for image in images
        if not (_is_side(image['width']) and _is_side(image['height']))
    ]
    findings.count(
        sizeless, 'images have a width or height that is no integer of at least 1', problem=True
    )


def _is_side(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _fault(box: dict, image: dict, category_ids: set, names: dict) -> str | None:
    """Why MMDetection leaves this annotation out (as ``CocoDataset.parse_data_info`` does)."""
    if box.get('ignore', False):
        return 'marked "ignore"'
    x, y, width, height = box['bbox']
    inside_x = min(x + width, image['width']) - max(x, 0)
    inside_y = min(y + height, image['height']) - max(y, 0)
    if inside_x <= 0 or inside_y <= 0:
        return 'outside the image'
    if box['area'] <= 0 or width < 1 or height < 1:
        return 'smaller than one pixel, or of no area'
    if box['category_id'] not in names:
        return 'of a category that the file does not list'
    if box['category_id'] not in category_ids:
        return 'of a category that is not among the class names'
    return None


def _sticks_out(box: dict, image: dict) -> bool:
    x, y, width, height = box['bbox']
    return (
        min(x, y) < -_TOLERANCE
        or x + width > image['width'] + _TOLERANCE
        or y + height > image['height'] + _TOLERANCE
    )


def _is_box(value) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) == 4
        and all(isinstance(x, (int, float)) and math.isfinite(x) for x in value)
    )


def _check_boxes(dataset, content: dict, findings: Findings, *, with_mask: bool) -> None:
    classes = dataset.metainfo['classes']
    names = {entry['id']: entry['name'] for entry in content['categories']}
    category_ids = {number for number, name in names.items() if name in classes}
    images = {image['id']: image for image in content['images']}
    skipped: Counter[str] = Counter()
    kept: Counter[str] = Counter()
    crowd, no_mask, bad_mask, out = 0, [], [], []
    per_image: Counter[str] = Counter()
    for box in content['annotations']:
        image = images.get(box['image_id'])
        if image is None:
            skipped['of an image that the file does not list'] += 1
            continue
        if not _is_box(box['bbox']):
            findings.problem(
                f'annotation {box["id"]}: bbox is {box["bbox"]!r}, not 4 finite numbers'
            )
            return
        fault = _fault(box, image, category_ids, names)
        if fault is not None:
            skipped[fault] += 1
            continue
        if _sticks_out(box, image):
            out.append(box['id'])
        if with_mask and not box.get('segmentation'):
            no_mask.append(box['id'])
        elif with_mask and (fault := _mask_fault(box['segmentation'], image)):
            bad_mask.append(f'{box["id"]} ({fault})')
        per_image[image['file_name']] += 1
        crowd += bool(box.get('iscrowd'))
        kept[names[box['category_id']]] += 1

    total = sum(kept.values())
    findings.note(f'{len(images)} images, {total} usable boxes ({_per_class(kept, classes)})')
    for reason, number in skipped.items():
        findings.note(f'{number} boxes are skipped by MMDetection: {reason}')
    if crowd:
        findings.note(f'{crowd} boxes mark crowds; MMDetection ignores what is found there')
    _judge_outside(out, skipped['outside the image'], len(content['annotations']), findings)
    findings.count(
        no_mask,
        'boxes have no segmentation, which a mask detector needs (a box detector does not); '
        'annotation ids',
        problem=True,
    )
    findings.count(bad_mask, 'boxes have a mask that cannot be read; annotation ids', problem=True)
    many = [f'{name} ({number})' for name, number in per_image.items() if number > _MANY_BOXES]
    findings.count(many, f'images have more than {_MANY_BOXES} boxes, which takes much memory')
    if not total:
        findings.problem('no usable box is left')
    _note_filtered_images(dataset, content, category_ids, findings)


def _mask_fault(mask, image: dict) -> str | None:
    """Why a mask ends a training when its image comes: MMDetection reads it no sooner."""
    if isinstance(mask, dict):
        expected = [image['height'], image['width']]
        if 'counts' not in mask or list(mask.get('size') or ()) != expected:
            return f'run lengths of size {mask.get("size")}, image {expected}'
        return None
    if not isinstance(mask, list):
        return f'a {type(mask).__name__}'
    for polygon in mask:
        if not isinstance(polygon, list) or not all(
            isinstance(x, (int, float)) and math.isfinite(x) for x in polygon
        ):
            return 'a polygon is no list of finite numbers'
    return None


def _per_class(kept: Counter, classes) -> str:
    numbers = ', '.join(f'{name} {kept[name]}' for name in list(classes)[:20])
    return numbers if len(classes) <= 20 else f'{numbers}, ...'


def _judge_outside(out: list, outside: int, total: int, findings: Findings) -> None:
    if len(out) + outside > total / 2:
        findings.problem(
            f'{len(out) + outside} of {total} boxes reach beyond their image; COCO boxes are '
            '[x, y, width, height] in pixels of the image, not [x1, y1, x2, y2]'
        )
    else:
        findings.count(
            out, 'boxes reach beyond their image and are clipped by MMDetection; annotation ids'
        )


def _note_filtered_images(dataset, content: dict, category_ids: set, findings: Findings) -> None:
    config = dataset.filter_cfg or {}
    if dataset.test_mode or not config:
        return
    used = {b['image_id'] for b in content['annotations'] if b['category_id'] in category_ids}
    images = content['images']
    empty = [image['file_name'] for image in images if image['id'] not in used]
    small = [
        image['file_name']
        for image in images
        if min(image['width'], image['height']) < config.get('min_size', 0)
    ]
    if config.get('filter_empty_gt', False):
        findings.count(empty, 'images are skipped by MMDetection: no box of these classes')
    findings.count(
        small, f'images are skipped by MMDetection: a side under {config.get("min_size")}'
    )


def _check_images(dataset, images: list, findings: Findings, max_decode: int | None) -> None:
    folder, backend_args = dataset.data_prefix['img'], dataset.backend_args
    if not is_local(folder, backend_args):
        findings.note('the images are on remote storage, so their files were not looked for')
    missing = missing_files(folder, [image['file_name'] for image in images], backend_args)
    findings.count(missing, f'of {len(images)} images are not in {folder!r}', problem=True)
    gone = set(missing)
    sample = evenly_spaced([i for i in images if i['file_name'] not in gone], max_decode)
    corrupt, other_size = [], []
    for image in sample:
        try:
            size = image_size(osp.join(folder, image['file_name']), backend_args)
        except ValueError as error:
            corrupt.append(f'{image["file_name"]} ({error})')
            continue
        if size != (image['width'], image['height']):
            other_size.append(f'{image["file_name"]} ({size[0]} x {size[1]})')
    findings.count(corrupt, 'images cannot be decoded', problem=True)
    findings.count(other_size, 'images have another size than the annotation file says')
    findings.note(f'decoded {len(sample)} of {len(images)} images')
