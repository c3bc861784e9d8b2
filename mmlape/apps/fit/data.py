"""Contents of a folder of images: its format, its classes, and its parts for training and validation."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mmlape.apps.inference.reading import count_of_macos, shown
from mmlape.checkpoints.report import listed
from mmlape.checks import check_option, check_rate

from .coco import (
    coco_files,
    coco_parts,
    is_plain_utf8,
    of_listed_images,
    those,
    with_categories,
    with_names_once,
    with_sizes,
)
from .folders import images_in, note_twice
from .label_maps import read_maps
from .labelme import labelme_files, read_labelme
from .map_folders import find_map_layout, where_maps_are_looked_for
from .parts import Asked, OwnData, Part, Split, is_utf8
from .voc import read_voc, read_xml_files, xml_files
from .yolo import (
    classes_files,
    darknet_file,
    is_yolo,
    read_darknet,
    read_label_files,
    read_yolo,
)

TASKS = ('detect', 'instance', 'segment')
_MANY = 100  # names in a message


def find_data(
    folder: str | Path,
    out: str | Path,
    task: str | None = None,
    val: float = 0.2,
    seed: int = 0,
    train_ann: str | None = None,
    val_ann: str | None = None,
    classes: Sequence[str] = (),
) -> OwnData:
    """Find out what ``folder`` holds. Nothing is written: see ``files`` of the result.

    Args:
        folder: The folder.
        out: Where a split and converted annotations are to be written, in ``out/data``.
        task: Of :data:`TASKS`. Default None: what the data are for.
        val: Share of the images for validation where the data have no such part; 0 for none. Default 0.2.
        seed: Of that split.
        train_ann, val_ann: COCO files, as they are or seen from ``folder``. Default None: found by their names.
        classes: Names of the classes of label maps. Default: those of a file
            ``classes.txt``, ``labels.txt`` or ``codes.txt``, else numbers.

    Raises:
        ValueError: If the folder holds no data of a known format, or of several, or the data do not fit the options;
            with a message of one line, whatever names of files hold.
    """
    try:
        return _find(Path(folder), Path(out), task, val, seed, train_ann, val_ann, tuple(classes))
    except (ValueError, OSError) as error:
        raise ValueError(shown(str(error))) from error


def _find(
    root: Path,
    out: Path,
    task: str | None,
    val: float,
    seed: int,
    train_ann: str | None,
    val_ann: str | None,
    classes: tuple[str, ...],
) -> OwnData:
    if not os.path.isdir(root):
        raise ValueError(f'there is no folder {str(root)!r}')
    if not all(is_utf8(str(path)) for path in (root, out)):
        raise ValueError(f'names of folders must be UTF-8, got {root} and {out} for the results')
    if task is not None:
        check_option('--task', task, TASKS)
    check_rate('--val', val)
    unread: list[str] = []
    found = _formats(root, task, train_ann or val_ann, unread)
    if len(found) > 1:
        raise ValueError(
            f'{root} holds data of several formats: {", ".join(found)}; choose by --task or --train-ann, or remove the '
            'files of all but one'
        )
    if not found and task is not None and (others := _formats(root, None, None, [])):
        raise ValueError(f'--task {task} does not fit the data of {root}: {", ".join(others)}')
    if not found:
        raise ValueError('; '.join([_known(root), *unread[:3]]))
    ((kind, content),) = found.items()
    notes = [f'left out: {shown(text)}' for text in unread[:5]]
    if beside := count_of_macos(root):
        notes.append(f'left out: {beside} files of macOS (._*)')
    split = Split(Path(out, 'data'), val, seed, notes)
    asked = Asked(root, task, train_ann, val_ann, classes, split, unread)
    return FORMATS[kind].read(asked, content)


def _known(root: Path) -> str:
    """Say what was looked for, for a folder in which nothing was found."""
    known = one_of(f'{name} ({form.sign})' for name, form in FORMATS.items())
    text = f'{root} holds no data of a known format: {known}'
    if images := images_in(root):
        files = one_of(f'{images[0].stem}{ending}' for ending in ('.txt', '.xml', '.json'))
        text += f'; of its {len(images)} images, none has a file such as {files} for {images[0]}'
        text += f'; {where_maps_are_looked_for(images[0])}'
    return text


def _formats(root: Path, task: str | None, named: str | None, unread: list[str]) -> dict[str, Any]:
    """Formats that the folder may be read as, with what was detected of each; ``unread`` gets the reasons why files
    cannot be read."""
    if named and task == 'segment':
        raise ValueError(
            '--train-ann and --val-ann name COCO files, --task segment is for label maps'
        )
    if named:
        return {'COCO': None}
    fitting = {
        name: form
        for name, form in FORMATS.items()
        if task is None or (task == 'segment') == ('segment' in form.tasks)
    }
    for beside in (False, True):
        detected = {
            name: form.detect(root, unread)
            for name, form in fitting.items()
            if form.beside_images == beside
        }
        if any(detected.values()):
            break
    return {name: content for name, content in detected.items() if content}


def _boxes(kind: str, parts: dict[str, Any], task: str | None, split: Split) -> OwnData:
    """Data of a detector, from COCO contents by part."""
    from mmlape.training.coco_evaluation import mended  # with torch, which `--help` does without

    notes = split.notes
    for part, (content, images, path) in parts.items():
        kept = of_listed_images(with_names_once(content, part), part, notes)
        once, changes = mended(with_sizes(kept, images))
        if path is not None and not is_plain_utf8(path):
            changes.append('the annotation file is written anew as UTF-8 without byte order mark')
        if once is not content or changes:
            parts[part] = once, images, None
        notes += [f'{part} part: {change}' for change in changes]
    classes = _classes({part: content for part, (content, *_) in parts.items()}, notes)
    wanted = parts['train'][0]['categories']
    for part, (content, images, _) in parts.items():
        if [one['name'] for one in content['categories']] != [one['name'] for one in wanted]:
            parts[part] = with_categories(content, wanted), images, None
    boxes = [box for content, *_ in parts.values() for box in content['annotations']]
    masked = [bool(box.get('segmentation')) for box in boxes if not box.get('iscrowd')]
    has_masks = bool(masked) and all(masked)
    without = f'{masked.count(False)} of {len(masked)} boxes have no mask'
    if task == 'instance' and not has_masks:
        raise ValueError(f'--task instance needs masks, and {without}: use --task detect')
    if task is None and any(masked) and not has_masks:
        notes.append(f'boxes alone are trained: {without}')
    if 'val' in parts:
        train, val = (
            [images / image['file_name'] for image in content['images']]
            for content, images, _ in (parts['train'], parts['val'])
        )
        note_twice(train, val, notes)
    else:
        content, images, _ = parts['train']
        drawn = split.draw(image['file_name'] for image in content['images'])
        parts = {'train': (those(content, drawn, False), images, None)}
        if drawn:
            parts['val'] = those(content, drawn, True), images, None
            counts = ' and '.join(str(len(part[0]['images'])) for part in parts.values())
            notes.append(f'no validation part: split into {counts} images by seed {split.seed}')
        for name, (content, *_) in parts.items():
            if not content['annotations']:
                raise ValueError(
                    f'the {name} part that --seed {split.seed} draws has no box: try another --seed'
                )
    found = {}
    for name, (content, images, path) in parts.items():
        file = split.write(f'{name}.json', json.dumps(content)) if path is None else str(path)
        count = len(content['images'])
        empty = count - len({box['image_id'] for box in content['annotations']})
        found[name] = Part(os.path.abspath(images), os.path.abspath(file), count, empty=empty)
    if found['train'].empty:
        notes.append(f'no box: {found["train"].empty} images, trained on only with --negatives')
    contents = [content['annotations'] for content, *_ in parts.values()]
    most = max(n for part in contents for n in Counter(b['image_id'] for b in part).values())
    return OwnData(
        task or ('instance' if has_masks else 'detect'), kind, classes, found['train'], found.get('val'),
        most=most, notes=notes, files=split.files,
    )  # fmt: skip


def _classes(contents: dict[str, dict], notes: list[str]) -> tuple[str, ...]:
    """Names of the categories that have boxes, in the order of the training file, as MMDetection numbers them."""
    counts = {}
    for part, content in contents.items():
        names = {category['id']: category['name'] for category in content['categories']}
        ids = [box['category_id'] for box in content['annotations']]
        counts[part] = Counter(names.get(each, f'category_id {each!r}') for each in ids)
    total = sum(counts.values(), Counter())
    names_in_order = [category['name'] for category in contents['train']['categories']]
    empty = [name for name in names_in_order if not total[name]]
    unseen = [name for name in names_in_order if total[name] and not counts['train'][name]]
    unlisted = sorted(total.keys() - set(names_in_order))
    if unlisted:
        raise ValueError(
            f'boxes of categories that the training part does not list: {listed(unlisted, _MANY)}'
        )
    if empty:
        notes.append(f'left out, no box: {listed(empty, _MANY)}')
    if unseen:
        notes.append(f'no box in the training part: {listed(unseen, _MANY)}')
    classes = tuple(name for name in names_in_order if total[name])
    if not classes:
        raise ValueError('the annotations have no box of a category that they list')
    return classes


def _parts_of_coco(asked: Asked, files: dict[Path, dict] | None) -> dict[str, Any]:
    found = files or coco_files(asked.root, asked.unread)
    return coco_parts(asked.root, found, asked.train_ann, asked.val_ann, asked.split.notes)


def _with_boxes(
    kind: str, parts_of: Callable[[Asked, Any], dict[str, Any]]
) -> Callable[[Asked, Any], OwnData]:
    """How to read a format of boxes, from COCO contents by part."""

    def read(asked: Asked, content: Any) -> OwnData:
        if asked.classes:
            raise ValueError(f'--classes is for label maps; {kind} data name their classes')
        return _boxes(kind, parts_of(asked, content), asked.task, asked.split)

    return read


class DataFormat(NamedTuple):
    """A format of data sets.

    Attributes:
        detect: From the folder, and a list that gets reasons why files cannot be read, what ``read`` starts from;
            something false if the folder has another format.
        read: The data, from what was asked and detected.
        tasks: Those of :data:`TASKS` that it can be trained for, the usual one first.
        sign: What is recognised, in a word or two.
        known_by: The same, in Markdown.
        beside_images: It has files beside images alone, which may also be left over from what another format was made
            of: it is looked for where there is none of the others.
    """

    detect: Callable[[Path, list[str]], Any]
    read: Callable[[Asked, Any], OwnData]
    tasks: tuple[str, ...]
    sign: str
    known_by: str
    beside_images: bool = False


# name: how it is detected and read. Help, messages and the table of docs/fit.md are made from this.
FORMATS = {
    'COCO': DataFormat(
        coco_files,
        _with_boxes('COCO', _parts_of_coco),
        ('instance', 'detect'),
        '.json',
        '`.json` files with `images`, `annotations` and `categories`; with or without masks',
    ),
    'YOLO': DataFormat(
        is_yolo,
        _with_boxes('YOLO', lambda asked, _: read_yolo(asked.root)),
        ('detect', 'instance'),
        'data.yaml',
        'a YAML file with `names` and `train`, such as `data.yaml`; label files with boxes or polygons',
    ),
    'YOLO 1.1': DataFormat(
        lambda root, _: darknet_file(root),
        _with_boxes('YOLO 1.1', lambda asked, file: read_darknet(asked.root, file)),
        ('detect', 'instance'),
        'obj.data',
        "`obj.data` with `names` and `train`, as CVAT's YOLO 1.1 and Darknet have it",
    ),
    'Pascal VOC': DataFormat(
        lambda root, _: any(root.glob('Annotations/[!.]*.xml')),
        _with_boxes('Pascal VOC', lambda asked, _: read_voc(asked.root, asked.split.notes)),
        ('detect',),
        'Annotations/*.xml',
        '`Annotations/*.xml`, `JPEGImages/`',
    ),
    'label maps': DataFormat(
        lambda root, _: find_map_layout(root),
        read_maps,
        ('segment',),
        'images/ and masks/ or annotations/',
        'images and lossless files with the index of the class in each pixel (255: ignored), or with its colour and a '
        'legend: in two folders, for example `images/` and `masks/`, or `train/` and `train_labels/`; as `X.jpg` and '
        '`X_mask.png`; as Cityscapes, CamVid, Pascal VOC, CVAT and Roboflow have them',
    ),
    'YOLO with classes.txt': DataFormat(
        lambda root, _: classes_files(root),
        _with_boxes(
            'YOLO with classes.txt', lambda asked, files: read_label_files(asked.root, files)
        ),
        ('detect', 'instance'),
        'classes.txt',
        "`classes.txt` and YOLO's label files, beside the images or in `labels/` (LabelImg, Label Studio)",
        beside_images=True,
    ),
    'XML files': DataFormat(
        lambda root, _: xml_files(root),
        _with_boxes(
            'XML files', lambda asked, files: read_xml_files(asked.root, files, asked.split.notes)
        ),
        ('detect',),
        '.xml',
        "Pascal VOC's `.xml` files beside the images or in another folder (LabelImg, Roboflow)",
        beside_images=True,
    ),
    'LabelMe': DataFormat(
        lambda root, _: labelme_files(root),
        _with_boxes(
            'LabelMe', lambda asked, files: read_labelme(asked.root, files, asked.split.notes)
        ),
        ('instance', 'detect'),
        '.json of each image',
        "LabelMe's `.json` files beside the images or in another folder: polygons, rectangles, circles, masks",
        beside_images=True,
    ),
}


def one_of(names: Iterable[str]) -> str:
    """``a, b or c``."""
    *others, last = names
    return f'{", ".join(others)} or {last}' if others else last
