"""COCO files in a folder of images: which are for what, whether they can be read, and parts of them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmlape.apps.inference.reading import check_regular, is_of_macos, read_bytes, short
from mmlape.checkpoints.report import listed

from .contents import check_names, size_of
from .folders import IMAGE_FOLDERS, part_of

# Keys of a COCO file that are read here; mmlape.CheckDataHook asks for more before a training.
_KEYS = dict(
    images={'id', 'file_name'},
    annotations={'image_id', 'category_id'},
    categories={'id', 'name'},
)
# Before the first brace of JSON, byte order marks among it.
_SPACE = b' \t\r\n\0\xef\xbb\xbf\xfe\xff'


def coco_files(root: Path, unread: list[str]) -> dict[Path, dict]:
    """COCO files of objects in the folder, at most two folders down, with their contents; see :func:`_formats`."""
    found = {}
    seen: set[tuple[str, str]] = set()
    paths = [*root.glob('*.json'), *root.glob('*/*.json'), *root.glob('*/*/*.json')]
    for path in sorted(paths, key=lambda path: (len(path.parts), path)):
        # A link to a folder around it shows the same files again.
        place = os.path.realpath(path.parent), path.name
        # The folder of an earlier `mmlape fit` is not data.
        if (
            place in seen
            or (path.parent.parent / 'fit.py').is_file()
            or path.is_dir()
            or is_of_macos(path.name)
        ):
            continue
        seen.add(place)
        try:
            content = _json(path)
        except ValueError as error:
            unread.append(str(error))
        else:
            if (objects := _coco(path, content)) is not None:
                found[path] = objects
            elif lacking := _lacking(content):
                unread.append(
                    f'{path} is no COCO file: {", ".join(lacking)} must be lists that are not empty'
                )
    return found


def _json(path: Path) -> Any:
    """The content of a JSON file; None if it is not an object, which is seen without reading it.

    Raises:
        ValueError: If it cannot be read, or is empty.
    """
    if not check_regular(path):
        raise ValueError(f'{path} is empty')
    with path.open('rb') as file:
        if not file.read(4096).lstrip(_SPACE).startswith(b'{'):
            return None
    text = read_bytes(path)
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError(f'{path} is not an annotation file: its lists are too deep') from None
    except MemoryError:
        raise ValueError(f'{path} does not fit into memory') from None
    except UnicodeDecodeError:
        raise ValueError(f'{path} is not JSON: it is not UTF-8') from None
    except ValueError as error:
        raise ValueError(f'{path} is not JSON: {error}') from None


def is_plain_utf8(path: Path) -> bool:
    """Whether a JSON file is read by pycocotools, which takes no byte order mark and no UTF-16."""
    with path.open('rb') as file:
        start = file.read(4096)
    return start.lstrip(b' \t\r\n').startswith(b'{') and b'\0' not in start


def _coco(path: Path, content: Any) -> dict | None:
    """The content of a COCO file of objects; None for other JSON."""
    keys = ('images', 'annotations', 'categories')
    lists = isinstance(content, dict) and all(isinstance(content.get(key), list) for key in keys)
    if not lists or not content['images'] or not content['categories']:
        return None
    if any(
        isinstance(one, dict) and 'segments_info' in one for one in content['annotations'][:1]
    ):  # panoptic
        return None
    from mmlape.training.data_audit import COCO_ENTRIES  # with torch, which `--help` does without

    for section, names in _KEYS.items():
        for entry in content[section]:
            if not isinstance(entry, dict) or not names <= entry.keys():
                got = (
                    ', '.join(map(short, [*entry][:9])) if isinstance(entry, dict) else short(entry)
                )
                raise ValueError(
                    f'{path}: an entry of {section!r} lacks one of {", ".join(sorted(names))}: it has {got}'
                )
    for section, rules in COCO_ENTRIES.items():
        for key, (valid, what) in rules.items():
            for entry in content[section]:
                if key in entry and not valid(entry[key]):
                    whose = '' if key == 'id' else f'; its id is {short(entry.get("id"))}'
                    raise ValueError(
                        f'{path}: {key!r} of an entry of {section!r} must be {what}, '
                        f'got {_shortened(entry[key])}{whose}'
                    )
    check_names([entry['name'] for entry in content['categories']], path)
    return content


def _shortened(value: Any) -> str:
    """A value, or the first elements of a list, for a message."""
    if not isinstance(value, list):
        return short(value)
    return f'[{", ".join(map(short, value[:5]))}{", ..." * (len(value) > 5)}]'


def _lacking(content: Any) -> list[str]:
    """The lists that a JSON with boxes or masks, as COCO has them, lacks."""
    boxes = content.get('annotations') if isinstance(content, dict) else None
    first = boxes[0] if isinstance(boxes, list) and boxes else None
    if not isinstance(first, dict) or not {'bbox', 'segmentation'} & first.keys():
        return []
    return [key for key in ('images', 'categories') if not content.get(key)]


def coco_parts(
    root: Path,
    files: dict[Path, dict],
    train_ann: str | None,
    val_ann: str | None,
    notes: list[str],
) -> dict[str, Any]:
    """Contents of the COCO files, by ``'train'`` and ``'val'``, with their image folders and files."""
    chosen: dict[str, tuple[Path, dict]] = {}
    for part, text in (('train', train_ann), ('val', val_ann)):
        if text is not None:
            path = Path(text) if os.path.isfile(text) else root / text
            content = _coco(path, _json(path)) if os.path.lexists(path) else None
            if content is None:
                raise ValueError(f'--{part}-ann: {text!r} is not a COCO file')
            chosen[part] = path, content
    wanted = [part for part in ('train', 'val') if part not in chosen]
    if wanted:
        taken = [path for path, _ in chosen.values()]
        rest = {p: found for p, found in files.items() if not any(map(p.samefile, taken))}
        chosen |= _by_name(root, rest, wanted)
    return {part: _with_images(root, part, *found, notes) for part, found in chosen.items()}


def _with_images(
    root: Path, part: str, file: Path, content: dict, notes: list[str]
) -> tuple[dict, Path, Path | None]:
    """A content, the folder of its images, and its file; None for the file where images are there by other names: with
    ``/`` for the ``\\`` of Windows, or without the folders of another machine."""
    try:
        return content, _image_folder(root, part, file, content), file
    except ValueError as error:
        names = [image['file_name'] for image in content['images']]
        plain = [name.replace('\\', '/') for name in names]
        deepest = min(64, max(name.count('/') for name in plain))
        # Without as few of the other machine's folders as it takes.
        for depth in range(deepest, -1, -1):
            others = ['/'.join(name.split('/')[-1 - depth :]) for name in plain]
            if others == names or len(set(others)) < len(names):
                continue
            images = [
                {**image, 'file_name': name} for image, name in zip(content['images'], others)
            ]
            try:
                folder = _image_folder(root, part, file, {**content, 'images': images})
            except ValueError:
                continue
            notes.append(f'{part} part: images are at {short(others[0])} for {short(names[0])}')
            return {**content, 'images': images}, folder, None
        raise error


def _by_name(
    root: Path, files: dict[Path, dict], parts: Sequence[str]
) -> dict[str, tuple[Path, dict]]:
    """The files of the parts by their names; a single file without a name of a part is for training."""
    named: dict[str, list[Path]] = {}
    for path in files:
        part = part_of(path.stem) or part_of(path.parent.relative_to(root).as_posix())
        named.setdefault(part or 'train', []).append(path)
    chosen = {}
    for part in parts:
        paths = named.get(part, [])
        # COCO has keypoints beside instances.
        paths = [path for path in paths if 'instances' in path.name] or paths
        if len(paths) > 1:
            raise ValueError(
                f'several COCO files may be for {part}: {listed(map(str, paths), 9)}; name one by --{part}-ann'
            )
        if paths:
            chosen[part] = paths[0], files[paths[0]]
    if 'train' in parts and 'train' not in chosen:
        raise ValueError(
            f'{root} has no COCO file for training: {listed(map(str, files), 9)}; name one by --train-ann'
        )
    return chosen


def _image_folder(root: Path, part: str, ann_file: Path, content: dict) -> Path:
    """The folder in which the images of a COCO file are; all must be there."""
    names = [image['file_name'] for image in content['images']]
    folders = [ann_file.parent, root, *_folders(root)]
    # Other folders (masks, depth) can contain the same file names.
    folders.sort(
        key=lambda folder: (
            part_of(os.path.relpath(folder, root)) != part,
            folder.name not in (*IMAGE_FOLDERS, ann_file.parent.name, root.name),
        )
    )
    # Not Path.is_file, which raises for names that are too long.
    found = [folder for folder in folders if os.path.isfile(folder / names[0])]
    if not found:
        raise ValueError(f'{ann_file} names {short(names[0])}, which is in no folder of {root}')
    best = min(found, key=lambda folder: sum(not os.path.isfile(folder / name) for name in names))
    missing = [name[:80] for name in names if not os.path.isfile(best / name)]
    if missing:
        raise ValueError(
            f'{len(missing)} of {len(names)} images of {ann_file} are not in {best}: {", ".join(missing[:5])}'
        )
    return best


def _folders(root: Path) -> list[Path]:
    """The folders in a folder, two levels down."""
    return sorted(path for path in [*root.glob('*'), *root.glob('*/*')] if path.is_dir())


def with_names_once(content: dict, part: str) -> dict:
    """A COCO content, without categories whose name another one with boxes has (Roboflow's supercategory)."""
    counts = Counter(one['name'] for one in content['categories'])
    used = {box['category_id'] for box in content['annotations']}
    kept = [one for one in content['categories'] if counts[one['name']] == 1 or one['id'] in used]
    if len(kept) == len(counts) == len(content['categories']):
        return content
    for name, count in Counter(one['name'] for one in kept).items():
        if count > 1:
            raise ValueError(
                f'the {part} part has boxes of {count} categories that are named {name!r}'
            )
    return {**content, 'categories': kept}


def of_listed_images(content: dict, part: str, notes: list[str]) -> dict:
    """A COCO content without boxes of images that it does not list; their number is noted.

    Raises:
        ValueError: If no other box is left.
    """
    images, boxes = content['images'], content['annotations']
    ids = {image['id'] for image in images}
    lost = [box for box in boxes if box['image_id'] not in ids]
    if not lost:
        return content
    told = (
        f'{len(lost)} of {len(boxes)} boxes are of an image that the file does not list: image_id '
        f'{short(lost[0]["image_id"])}, and the id of the first image is {short(images[0]["id"])}'
    )
    if len(lost) == len(boxes):
        raise ValueError(f'the {part} part: {told}')
    notes.append(f'{part} part: left out, {told}')
    return {**content, 'annotations': [box for box in boxes if box['image_id'] in ids]}


def with_sizes(content: dict, folder: Path) -> dict:
    """A COCO content in which each image has ``width`` and ``height``, read from the file where they are missing."""
    if all({'width', 'height'} <= image.keys() for image in content['images']):
        return content
    images = [
        image if {'width', 'height'} <= image.keys()
        else {**image, **dict(zip(('width', 'height'), size_of(folder / image['file_name'])))}
        for image in content['images']
    ]  # fmt: skip
    return {**content, 'images': images}


def with_categories(content: dict, categories: list[dict]) -> dict:
    """A COCO content with those categories instead of its own, of the same names."""
    names = {one['id']: one['name'] for one in content['categories']}
    ids = {one['name']: one['id'] for one in categories}
    boxes = [
        {**box, 'category_id': ids[names[box['category_id']]]} for box in content['annotations']
    ]
    return {**content, 'categories': categories, 'annotations': boxes}


def those(content: dict, names: set[str], wanted: bool) -> dict:
    """A COCO content with those images alone whose names are in ``names`` or, if not ``wanted``, are not."""
    images = [image for image in content['images'] if (image['file_name'] in names) == wanted]
    ids = {image['id'] for image in images}
    boxes = [box for box in content['annotations'] if box['image_id'] in ids]
    return {**content, 'images': images, 'annotations': boxes}
