"""Label maps of ``mmlape fit``: the classes that their values stand for, and copies where upstream cannot read them."""

from __future__ import annotations

import io
import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from mmlape.apps.inference.reading import below, check_regular, read_text
from mmlape.checkpoints.report import listed

from .contents import check_names
from .folders import images_in
from .parts import Asked, OwnData, Part, is_utf8

IGNORED = 255  # MMSegmentation's ignore_index
_CLASS_FILES = ('classes.txt', 'labels.txt', 'codes.txt')
_LOSSY = ('JPEG', 'MPO', 'JPEG2000', 'WEBP', 'AVIF')  # Pillow's names of formats
_MANY = 20  # values or names in a message


class MapPart(NamedTuple):
    """Images of a part with their label maps.

    Attributes:
        images, maps: Folders.
        pairs: Image and label map by the name of the image in ``images``, without its ending.
    """

    images: Path
    maps: Path
    pairs: Mapping[str, tuple[Path, Path]]


@dataclass(frozen=True)
class Recoded:
    """A label map as PNG, with other labels for its values; values without one are ignored."""

    path: Path
    labels: Mapping[int, int]

    def __call__(self) -> bytes:
        """The bytes of the file."""
        import numpy as np
        from PIL import Image

        table = np.full(256, IGNORED, np.uint8)
        table[list(self.labels)] = list(self.labels.values())
        file = io.BytesIO()
        Image.fromarray(table[values_of(self.path)]).save(file, 'PNG')
        return file.getvalue()


def values_of(path: Path) -> Any:
    """The values of a label map, (H, W), 0 to 255.

    Raises:
        ValueError: If it cannot be read, its format is lossy, or it has several channels or other values.
    """
    import numpy as np
    from PIL import Image

    check_regular(path)
    try:
        with Image.open(path) as image:
            form, values = image.format, np.array(image)
    except Exception as error:  # Pillow's decoders raise errors of many types
        raise ValueError(f'{path} cannot be read: {error}') from None
    if form in _LOSSY:
        raise ValueError(
            f'{path} is {form}, which changes values of pixels: label maps must be saved as PNG, by the tool that '
            'made them'
        )
    if values.dtype.kind not in 'bui' or values.min(initial=0) < 0:
        raise ValueError(f'{path} holds values that are not an index of a class')
    if values.ndim != 2:
        raise ValueError(
            f'{path} has {values.shape[-1]} channels; a label map has one, the class index of each pixel'
        )
    if values.max(initial=0) > 255:
        raise ValueError(f'{path} holds values above 255, of which upstream reads 8 bits')
    return values.astype(np.uint8)


def read_maps(asked: Asked, parts: dict[str, MapPart]) -> OwnData:
    """Data of a segmentor, from the images and label maps of its parts."""
    import numpy as np

    root = asked.root
    check_names(asked.classes, '--classes')
    if 'train' not in parts:
        raise ValueError(f'{root} has label maps of {", ".join(parts)}, and none for training')
    seen = {
        part: {value for _, path in found.pairs.values() for value in np.unique(values_of(path)).tolist()}
        for part, found in parts.items()
    }  # fmt: skip
    given = asked.classes or class_names(root)
    classes, labels = classes_of(set().union(*seen.values()), given, root)
    notes = asked.split.notes
    if labels:
        olds, news = (','.join(map(str, each)) for each in (labels, labels.values()))
        notes.append(f'label maps are copied to {asked.split.folder}/maps: {olds} -> {news}')
    labels = labels or {number: number for number in range(len(classes))}
    for what, values in (
        ('', set().union(*seen.values())),
        (' in the training part', seen['train']),
    ):
        absent = [classes[number] for value, number in labels.items() if value not in values]
        if absent:
            notes.append(f'no pixel{what}: {listed(absent, _MANY)}')
            break
    recoded = labels if any(old != new for old, new in labels.items()) else None
    return with_copies(asked, parts, classes, recoded)


def with_copies(
    asked: Asked,
    parts: dict[str, MapPart],
    classes: tuple[str, ...],
    labels: Mapping[int, int] | None,
) -> OwnData:
    """The data, with copies of the label maps where their values get other ``labels``, or their names or those of the
    images have several endings: MMSegmentation reads one of each."""
    split = asked.split
    img_suffix, map_suffix = (
        _ending([(name, pair[index]) for part in parts.values() for name, pair in part.pairs.items()])
        for index in (0, 1)
    )  # fmt: skip
    if img_suffix is None:
        paths = [image for part in parts.values() for image, _ in part.pairs.values()]
        endings = Counter(path.suffix for path in paths)
        img_suffix = endings.most_common(1)[0][0]
        counts = ', '.join(f'{number} {ending}' for ending, number in endings.items())
        split.notes.append(f'images are linked in {split.folder}/images, by one ending: {counts}')
        parts = {part: _linked(found, split, part, img_suffix) for part, found in parts.items()}
    if labels is not None or map_suffix is None:
        map_suffix = '.png'
        labels = labels or {value: value for value in range(IGNORED)}
        for part, found in parts.items():
            folder = split.folder / 'maps' / part
            for name, (_, path) in found.pairs.items():
                split.write(f'maps/{part}/{name}.png', Recoded(path, labels))
            parts = {**parts, part: found._replace(maps=folder)}
    return _drawn(asked, parts, classes, img_suffix, map_suffix)


def _ending(named: Sequence[tuple[str, Path]]) -> str | None:
    """The ending that follows all names in their paths; None if there are several."""
    endings = {path.name.removeprefix(name.rpartition('/')[2]) for name, path in named}
    return endings.pop() if len(endings) == 1 else None


def _linked(part: MapPart, split: Any, name: str, suffix: str) -> MapPart:
    """A part with links to its images that all have one ending."""
    for stem, (image, _) in part.pairs.items():
        split.write(f'images/{name}/{stem}{suffix}', image)
    return part._replace(images=split.folder / 'images' / name)


def _drawn(
    asked: Asked,
    parts: dict[str, MapPart],
    classes: tuple[str, ...],
    img_suffix: str,
    map_suffix: str,
) -> OwnData:
    """The data, with a validation part and lists of names where they are needed."""
    split, notes = asked.split, asked.split.notes
    names = {part: list(found.pairs) for part, found in parts.items()}
    # The whole folder is read without a list: label maps beside images would be images too, and MMSegmentation follows
    # links in a circle.
    in_lists = {
        part
        for part, found in parts.items()
        if found.images == found.maps or below(found.images)[1]
    }
    if 'val' not in parts and (drawn := split.draw(names['train'])):
        parts = {'train': parts['train'], 'val': parts['train']}
        names = {'train': [n for n in names['train'] if n not in drawn], 'val': sorted(drawn)}
        in_lists = {'train', 'val'}
        counts = ' and '.join(str(len(found)) for found in names.values())
        notes.append(f'no validation part: split into {counts} images by seed {split.seed}')
    found = {}
    for part, (images, maps, _) in parts.items():
        # MMSegmentation reads a name per line, without spaces around it.
        strange = [n for n in names[part] if not is_utf8(n) or n.split('\n') != [n.strip()]]
        if part in in_lists and strange:
            raise ValueError(
                f'{images}: names of images in lists must be UTF-8, without line breaks and spaces around '
                f'them: rename {strange[0]}, or make a folder for validation'
            )
        listing = '\n'.join(names[part]) + '\n'
        file = os.path.abspath(split.write(f'{part}.txt', listing)) if part in in_lists else ''
        folders = os.path.abspath(images), os.path.abspath(maps)
        found[part] = Part(folders[0], file, len(names[part]), folders[1])
    return OwnData(
        'segment', 'label maps', classes, found['train'], found.get('val'), img_suffix, map_suffix,
        notes=notes, files=split.files,
    )  # fmt: skip


def named_alike(images: Path, maps: Path) -> MapPart:
    """A part whose label maps are in another folder, and have the names of the images, or these and a text (``_mask``).

    Raises:
        ValueError: If an image has no label map, or several images have one name.
    """
    files = images_in(images)
    stems = [path.relative_to(images).as_posix().removesuffix(path.suffix) for path in files]
    pairs = dict(zip(stems, files, strict=True))
    if len(pairs) < len(files):
        name = next(name for name, count in Counter(stems).items() if count > 1)
        raise ValueError(
            f'several images of {images} are named {name}, which one label map cannot be of'
        )
    found: dict[str, Path] = {}
    for path in sorted(
        images_in(maps), key=lambda path: path.suffix.lower() != '.png', reverse=True
    ):
        found[path.relative_to(maps).as_posix().removesuffix(path.suffix)] = path
    beside = sorted(name for name in found if name.startswith(stems[0]))
    if not beside:
        raise ValueError(f'{files[0]} has no label map in {maps}')
    tail = min(beside, key=len).removeprefix(stems[0])
    without = [name for name in pairs if name + tail not in found]
    if without:
        raise ValueError(
            f'{len(without)} of {len(files)} images of {images} have no label map in {maps} '
            f'(NAME{tail}{found[stems[0] + tail].suffix}): {", ".join(without[:5])}'
        )
    return MapPart(images, maps, {name: (path, found[name + tail]) for name, path in pairs.items()})


def class_names(root: Path) -> tuple[str, ...]:
    """Names in a file of the folder, a line each; () without one."""
    for name in _CLASS_FILES:
        if os.path.lexists(root / name):
            lines = map(str.strip, read_text(root / name).splitlines())
            return check_names([line for line in lines if line], root / name)
    return ()


def classes_of(
    values: set[int], names: Sequence[str], root: Path
) -> tuple[tuple[str, ...], dict[int, int]]:
    """Classes by the values of all label maps, and labels of the values where these are no indices.

    Args:
        values: The values. 255 is ignored, unless it is needed for as many values as names (masks of 0 and 255).
        names: Names of the classes; () for numbers.
        root: The folder, for messages.

    Raises:
        ValueError: If a class never occurs, or a value has no class.
    """
    used = sorted(values - {IGNORED})
    if not names:
        return _without_names(used, sorted(values), root)
    if len(names) < 2:
        raise ValueError(
            f'label maps need at least two classes, the background is one, got only {names[0]!r}: '
            f'--classes background,{names[0]}'
        )
    strange = [value for value in used if value >= len(names)]
    if not strange and len(used) == len(names):
        return tuple(names), {}
    for those in (used, sorted(values)):
        if len(those) == len(names) and (strange or len(used) < 2):
            return tuple(names), {value: label for label, value in enumerate(those)}
    held = f'the label maps hold the values {_listed(sorted(values))}'
    if strange:
        raise ValueError(
            f'{held}, and there are names for 0 to {len(names) - 1}: give a name for each value, in their order '
            f'({len(used)} without 255, which is ignored)'
        )
    absent = [name for index, name in enumerate(names) if index not in values]
    present = [name for index, name in enumerate(names) if index in values]
    # Names of fewer classes are mapped to the values in their order.
    offer = f': name those that do, --classes {shlex.quote(",".join(present))}'
    offered = 1 < len(present) <= _MANY and not any(',' in name for name in present)
    raise ValueError(f'{held}: never there is {listed(absent, _MANY)}{offer if offered else ""}')


def _without_names(
    used: list[int], values: list[int], root: Path
) -> tuple[tuple[str, ...], dict[int, int]]:
    """Classes that are named by their numbers; refused where most would never occur."""
    if len(used) > 1 and 2 * len(used) > used[-1] + 1:
        return tuple(f'class {number}' for number in range(used[-1] + 1)), {}
    those = used if len(used) > 1 else values
    if len(those) < 2:
        raise ValueError(
            f'the label maps hold only the values {values}, and 255 is ignored: a label map has the index of '
            'its class in each pixel, of at least two classes'
        )
    names = ['background', 'object'] if len(those) == 2 else [f'name{value}' for value in those]
    offer = f'mmlape fit {shlex.quote(str(root))} --classes {",".join(names)}'
    if len(those) > _MANY:
        offer = 'if there are so many, name each by --classes'
    raise ValueError(
        f'the label maps hold only the values {_listed(values)}, and 255 is ignored; these are no indices of classes '
        f'(0, 1, 2 ...). With a name for each, they are mapped in their order: {offer}'
    )


def _listed(values: Sequence[int]) -> str:
    if len(values) <= _MANY:
        return str(list(values))
    return f'{values[0]} to {values[-1]}, {len(values)} different ones'
