"""Label maps of ``mmlape fit``: the classes that their values stand for, and copies where upstream cannot read them."""

from __future__ import annotations

import os
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmlape.apps.inference.reading import below, read_text
from mmlape.checkpoints.report import listed

from .contents import check_names
from .folders import images_in, note_twice
from .legends import IGNORED, Legend, cityscapes_legend, find_legend, value_text
from .map_folders import MapLayout, MapPart
from .map_values import Recoded, values_of
from .parts import Asked, OwnData, Part, is_utf8

_CLASS_FILES = ('classes.txt', 'labels.txt', 'codes.txt')
_MANY = 20  # values or names in a message


def read_maps(asked: Asked, layout: MapLayout) -> OwnData:
    """Data of a segmentor, from the images and label maps of its parts."""
    root, notes = asked.root, asked.split.notes
    check_names(asked.classes, '--classes')
    parts = layout.read(notes)
    if 'train' not in parts:
        raise ValueError(f'{root} has label maps of {", ".join(parts)}, and none for training')
    files = [path for part in parts.values() for pair in part.pairs.values() for path in pair]
    legend = None
    if not asked.classes:
        legend = find_legend(root, files) or cityscapes_legend(files[1])
    seen, channels = _seen(parts, legend)
    values = set().union(*seen.values())
    names = asked.classes or class_names(root) or class_names(layout.root)
    if max(values, default=0) > 255 or (legend and not names):
        legend = _complete(legend, values, parts, root)
        classes, labels = legend.classes, legend.labels
        if legend.ignored:
            notes.append(f'ignored, as {legend.where} says: {", ".join(legend.ignored)}')
    else:
        legend = None
        classes, labels = classes_of(values, names, root)
        labels = labels or {number: number for number in range(len(classes))}
    changed = {value for value in values if labels.get(value, IGNORED) != value}
    if changed or channels != {1}:
        how = ['three equal channels -> one'] * (channels != {1} and max(values) <= 255)
        if legend and changed:
            how.append(f'values of {legend.where} -> 0 to {len(classes) - 1}')
        elif changed:
            how.append(' -> '.join(','.join(map(str, each)) for each in (labels, labels.values())))
        notes.append(f'label maps are copied to {asked.split.folder}/maps: {"; ".join(how)}')
    notes += _absent(classes, labels, seen)
    return with_copies(
        asked, parts, classes, labels if changed or channels != {1} else None, legend
    )


def _seen(
    parts: Mapping[str, MapPart], legend: Legend | None
) -> tuple[dict[str, set[int]], set[int]]:
    """Values of the label maps by part, and their numbers of channels."""
    import numpy as np

    seen: dict[str, set[int]] = {part: set() for part in parts}
    channels = set()
    for part, found in parts.items():
        for _, path in found.pairs.values():
            values = values_of(path, legend)
            seen[part].update(np.unique(values.array).tolist())
            channels.add(values.channels)
    return seen, channels


def _complete(
    legend: Legend | None, values: set[int], parts: Mapping[str, MapPart], root: Path
) -> Legend:
    """The legend, if it has all values; refused otherwise."""
    import numpy as np

    colours = [value_text(value) for value in sorted(values) if value > 255]
    if legend is None or (colours and not legend.has_colours):
        raise ValueError(
            f'the label maps have {len(colours)} colours, {listed(colours, _MANY)}, which need a legend instead of '
            f'--classes: write {root / "labelmap.txt"} with a line NAME:RED,GREEN,BLUE for each, such as '
            'background:0,0,0'
        )
    unknown = values - legend.labels.keys() - {IGNORED}
    if not unknown:
        return legend
    places: dict[int, str] = {}
    for path in (path for part in parts.values() for _, path in part.pairs.values()):
        array = values_of(path, legend).array
        for value, count in zip(*np.unique(array, return_counts=True), strict=True):
            if value in unknown:
                text = f'{value_text(int(value))} in {count} pixels of {path}'
                places.setdefault(int(value), text)
        if len(places) == len(unknown):
            break
    raise ValueError(
        f'{legend.where} has no class for {len(unknown)} values of the label maps: '
        f'{listed(places.values(), 5)}'
    )


def _absent(
    classes: Sequence[str], labels: Mapping[int, int], seen: Mapping[str, set[int]]
) -> list[str]:
    """A note of classes that never occur, else of those that do not in the training part.

    Raises:
        ValueError: If all pixels of the training part are ignored.
    """
    for what, values in (
        ('', set().union(*seen.values())),
        (' in the training part', seen['train']),
    ):
        present = {labels[value] for value in values if value in labels} - {IGNORED}
        if not present:
            raise ValueError(
                f'no pixel{what} has a class; the label maps hold {_listed(sorted(values))}'
            )
        absent = [name for number, name in enumerate(classes) if number not in present]
        if absent:
            return [f'no pixel{what}: {listed(absent, _MANY)}']
    return []


def with_copies(
    asked: Asked,
    parts: dict[str, MapPart],
    classes: tuple[str, ...],
    labels: Mapping[int, int] | None,
    legend: Legend | None = None,
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
                split.write(f'maps/{part}/{name}.png', Recoded(path, labels, legend))
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
    folder = split.folder / 'images' / name
    pairs = {stem: (folder / f'{stem}{suffix}', pair[1]) for stem, pair in part.pairs.items()}
    return part._replace(images=folder, pairs=pairs)


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
    # The whole folder is read without a list: other images in it would be read too, such as label maps or those of
    # another part, and MMSegmentation follows links in a circle.
    in_lists = {
        part
        for part, found in parts.items()
        if below(found.images)[1]
        or set(images_in(found.images)) - {image for image, _ in found.pairs.values()}
    }
    if 'val' in parts:
        train, val = (
            [image for image, _ in parts[part].pairs.values()] for part in ('train', 'val')
        )
        note_twice(train, val, notes)
    elif drawn := split.draw(names['train']):
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
