"""Looking at the files of a data set: which exist, and which can be decoded."""

from __future__ import annotations

import io
import os.path as osp
from collections import defaultdict
from collections.abc import Iterable, Sequence

import mmcv
import numpy as np
from mmengine.fileio import LocalBackend, get_file_backend, list_dir_or_file
from mmengine.fileio import get as read_bytes
from PIL import Image, UnidentifiedImageError

from .findings import Findings, listed

# What Pillow raises; a bomb is an image of more pixels (179 million) than anybody means.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

__all__ = ['evenly_spaced', 'image_size', 'label_map_array', 'missing_files', 'missing_folder']


def is_local(path: str, backend_args: dict | None) -> bool:
    """Whether ``path`` is on a file system, where looking for a file is cheap."""
    return isinstance(get_file_backend(path, backend_args=backend_args), LocalBackend)


def missing_folder(findings: Findings, path: str, what: str, backend_args: dict | None) -> bool:
    """Record a problem and return True when the folder ``path`` does not exist."""
    if not is_local(path, backend_args) or osp.isdir(path):
        return False
    parent = osp.abspath(path)
    while not osp.isdir(parent):
        parent = osp.dirname(parent)
    here = sorted(list_dir_or_file(parent, list_file=False, recursive=False))
    holds = f'holds the folders {listed(here, 10)}' if here else 'holds no folder'
    findings.problem(f'the {what} {path!r} does not exist; {parent!r} {holds}')
    return True


def missing_files(folder: str, names: Iterable[str], backend_args: dict | None) -> list[str]:
    """The ``names`` that are not in ``folder``; 100,000 of them take about a second.

    Each subfolder is listed once. Files on remote storage are not looked for.
    """
    if not is_local(folder, backend_args):
        return []
    by_folder = defaultdict(list)
    for name in names:
        by_folder[osp.dirname(osp.join(folder, name))].append(name)
    missing = []
    for subfolder, members in by_folder.items():
        there = set()
        if osp.isdir(subfolder):
            there = set(list_dir_or_file(subfolder, list_dir=False, recursive=False))
        missing += [name for name in members if osp.basename(name) not in there]
    return missing


def evenly_spaced(items: Sequence, limit: int | None) -> list:
    """At most ``limit`` of the ``items``, spread over all of them (``None``: all)."""
    if limit is None or len(items) <= limit:
        return list(items)
    return [items[index * len(items) // limit] for index in range(limit)]


def image_size(path: str, backend_args: dict | None) -> tuple[int, int]:
    """Decode a whole image; return its ``(width, height)`` in pixels as stored (no EXIF rotation).

    Raises:
        ValueError: If the file is empty, truncated, not an image, or one of more than 179 million pixels.
    """
    content = read_bytes(path, backend_args=backend_args)
    if not content:
        raise ValueError('the file is empty')
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            return image.size
    except UnidentifiedImageError as error:
        # What upstream reads and Pillow does not, such as some TIFF variants.
        decoded = mmcv.imfrombytes(content, flag='unchanged')
        if decoded is None:
            raise ValueError('not an image') from error
        return decoded.shape[1], decoded.shape[0]
    except _UNREADABLE as error:
        raise ValueError(str(error)) from error


def label_map_array(path: str, backend_args: dict | None) -> np.ndarray:
    """Read a label map as MMSegmentation does: (H, W) integers, the indices of a palette image.

    Raises:
        ValueError: If the file cannot be decoded or holds colours in place of class indices.
    """
    content = read_bytes(path, backend_args=backend_args)
    if not content:
        raise ValueError('the file is empty')
    try:
        labels = mmcv.imfrombytes(content, flag='unchanged', backend='pillow').squeeze()
    except (UnidentifiedImageError, *_UNREADABLE) as error:
        raise ValueError(str(error) or 'not an image') from error
    if labels.ndim != 2:
        raise ValueError(
            f'{labels.shape[-1]} channels; a label map has one, the class index of each pixel'
        )
    return labels.astype(np.int64)
