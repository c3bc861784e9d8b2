"""Is a data set of images and label maps what its config says it is?"""

from __future__ import annotations

import os.path as osp
from collections import Counter, defaultdict

import numpy as np
from mmengine.fileio import exists, list_dir_or_file, list_from_file

from .data_files import evenly_spaced, image_size, label_map_array, missing_files, missing_folder
from .findings import Findings, listed

__all__ = ['check_label_maps']


def check_label_maps(dataset, findings: Findings, *, max_decode: int | None) -> None:
    """Check a ``mmseg.datasets.BaseSegDataset``, which need not be initialised.

    Args:
        dataset: The data set; its paths, suffixes, class names and ignored label are read.
        findings (Findings): Where problems and notes go.
        max_decode (int | None): Number of images and label maps to decode, ``None`` for all.
    """
    folders = dataset.data_prefix
    images, maps = folders.get('img_path'), folders.get('seg_map_path')
    for path, what in ((images, 'image folder'), (maps, 'label map folder')):
        if path is None:
            findings.problem(f'data_prefix names no {what}')
        else:
            missing_folder(findings, path, what, dataset.backend_args)
    if findings.problems:
        return
    twice = [name for name, times in Counter(dataset.metainfo['classes']).items() if times > 1]
    findings.count(twice, 'class names appear more than once', problem=True)
    names = _names(dataset, images, findings)
    if not names:
        return
    suffix = dataset.seg_map_suffix
    missing = set(
        missing_files(images, [n + dataset.img_suffix for n in names], dataset.backend_args)
    )
    without = set(missing_files(maps, [n + suffix for n in names], dataset.backend_args))
    findings.count(sorted(missing), f'listed images are not in {images!r}', problem=True)
    findings.count(
        sorted(without), f'of {len(names)} images have no label map; not in {maps!r}', problem=True
    )
    names = [
        n for n in names if n + dataset.img_suffix not in missing and n + suffix not in without
    ]
    _note_unused(dataset, maps, set(names), findings)
    _check_contents(dataset, evenly_spaced(names, max_decode), len(names), findings)


def _names(dataset, folder: str, findings: Findings) -> list[str]:
    """Image names without folder and suffix, found as ``BaseSegDataset.load_data_list`` does."""
    backend_args = dataset.backend_args
    if dataset.ann_file and not osp.isdir(dataset.ann_file):
        if not exists(dataset.ann_file, backend_args=backend_args):
            findings.problem(f'the list of images {dataset.ann_file!r} does not exist')
            return []
        names = [n.strip() for n in list_from_file(dataset.ann_file, backend_args=backend_args)]
        if not names:
            findings.problem(f'the list of images {dataset.ann_file!r} is empty')
        return names
    files = list(
        list_dir_or_file(folder, list_dir=False, recursive=True, backend_args=backend_args)
    )
    suffix = dataset.img_suffix
    names = sorted(file[: -len(suffix)] for file in files if file.endswith(suffix))
    others = Counter(osp.splitext(file)[1] for file in files if not file.endswith(suffix))
    if not names:
        holds = listed(f'{number} x {kind}' for kind, number in others.most_common())
        findings.problem(f'no file in {folder!r} ends in {suffix!r}; it holds {holds or "no file"}')
    elif others:
        findings.note(
            f'{sum(others.values())} files in {folder!r} are skipped: they do not end in {suffix!r}'
        )
        taken = set(names)
        rivals = [f for f in files if not f.endswith(suffix) and osp.splitext(f)[0] in taken]
        findings.count(
            sorted(rivals),
            f'of these have the name of an image that ends in {suffix!r}, which is taken',
        )
    return names


def _note_unused(dataset, folder: str, names: set, findings: Findings) -> None:
    if dataset.ann_file:
        return
    suffix = dataset.seg_map_suffix
    files = list_dir_or_file(
        folder, list_dir=False, suffix=suffix, recursive=True, backend_args=dataset.backend_args
    )
    unused = sorted(file for file in files if file[: -len(suffix)] not in names)
    findings.count(unused, 'label maps are skipped: no image of that name')


def _labels(dataset, stored: np.ndarray) -> np.ndarray:
    """The labels that the loss will see, from those in the file (in MMSegmentation's order)."""
    labels = stored.copy()
    if dataset.reduce_zero_label:
        labels = np.where((stored == 0) | (stored == 255), 255, stored - 1)
    if dataset.label_map is not None:
        before = labels.copy()
        for old, new in dataset.label_map.items():
            labels[before == old] = new
    return labels


def _check_contents(dataset, sample: list[str], total: int, findings: Findings) -> None:
    corrupt, other_size, blank = [], [], []
    wrong: dict[int, list[str]] = defaultdict(list)
    seen: set[int] = set()
    for name in sample:
        label_map = name + dataset.seg_map_suffix
        try:
            size, stored = _decode(dataset, name)
        except ValueError as error:
            corrupt.append(str(error))
            continue
        if stored.shape[::-1] != size:
            height, width = stored.shape
            other_size.append(f'{label_map} ({width} x {height}, image {size[0]} x {size[1]})')
        values = np.unique(stored)
        labels = dict(zip(values.tolist(), _labels(dataset, values).tolist(), strict=True))
        labels = {v: label for v, label in labels.items() if label != dataset.ignore_index}
        for value in _without_class(dataset, labels):
            wrong[value].append(label_map)
        seen.update(labels.values())
        if not labels:
            blank.append(label_map)

    findings.count(corrupt, 'files cannot be decoded', problem=True)
    findings.count(other_size, 'label maps have another size than their image', problem=True)
    classes = list(dataset.metainfo['classes'])
    for value, files in sorted(wrong.items()):
        findings.problem(
            f'{len(files)} label maps hold the value {value}, which is no class (there are '
            f'{len(classes)} class names, the ignored label is {dataset.ignore_index}, '
            f'reduce_zero_label is {dataset.reduce_zero_label}): {listed(files)}'
        )
    nothing = bool(sample) and len(blank) == len(sample)
    findings.count(blank, 'label maps hold nothing but the ignored label', problem=nothing)
    findings.note(f'{total} images with label maps; decoded {len(sample)}')
    absent = [name for index, name in enumerate(classes) if index not in seen]
    findings.count(absent, 'classes are in none of the decoded label maps')


def _decode(dataset, name: str) -> tuple[tuple[int, int], np.ndarray]:
    """Size of an image and its label map; raises ValueError with the name of the faulty file."""

    def read(reader, prefix: str, suffix: str):
        path = osp.join(dataset.data_prefix[prefix], name + suffix)
        try:
            return reader(path, dataset.backend_args)
        except ValueError as error:
            raise ValueError(f'{name + suffix} ({error})') from error

    size = read(image_size, 'img_path', dataset.img_suffix)
    return size, read(label_map_array, 'seg_map_path', dataset.seg_map_suffix)


def _without_class(dataset, labels: dict[int, int]) -> list[int]:
    count = len(dataset.metainfo['classes'])
    return [value for value, label in labels.items() if not 0 <= label < count]
