"""A folder of files that is built from options: once, completely or not at all, and never over something else."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

# A leftover of an interrupted build is removed when it is older than this; a build takes seconds.
STALE_SECONDS = 600


@dataclass(frozen=True)
class FolderKind:
    """What tells built folders of one kind from others.

    Args:
        name: For messages, a plural.
        marker: The name of the file, written last, that says what the folder was built with.
        version: Of the format and of everything that decides what the same options give.
    """

    name: str
    marker: str
    version: int


def build_once(
    root: Path,
    kind: FolderKind,
    options: dict[str, Any],
    build: Callable[[Path], dict[str, Any]],
) -> Path:
    """Build ``root``, or find that it is there already.

    It is built beside ``root`` and renamed, so it appears complete or not at all. A folder that was built with other
    options, or from which files are missing, is replaced.

    Args:
        root: The folder.
        kind: What it holds.
        options: What it is built from; kept in the marker file.
        build: Fills the given empty folder (``images`` and ``annotations`` in it) and returns further entries for the
            marker file.

    Returns:
        ``root``.

    Raises:
        FileExistsError: ``root`` holds something else.
    """
    reason = _reason_to_build(root, kind, options)
    if reason is None:
        return root
    _log(f'Building the {kind.name} in {root}: {reason}.')
    root.parent.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    partial = Path(tempfile.mkdtemp(prefix=_partial_prefix(root), dir=root.parent))
    try:
        further = build(partial)
        marker = {
            'format_version': kind.version,
            'options': options,
            'fingerprint': _fingerprint(kind, options),
            'contents': _contents(partial),
            **further,
        }
        (partial / kind.marker).write_text(json.dumps(marker, sort_keys=True) + '\n')
        # mkdtemp makes a folder that only its owner may read.
        partial.chmod(0o755)
        _swap_in(partial, root, kind)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return root


def check_number(
    name: str, value: Any, low: float, high: float, integer: bool = False
) -> int | float:
    """``value`` as a Python number; ValueError unless it is one from ``low`` to ``high``."""
    kinds = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
        kind = 'an integer' if integer else 'a number'
        raise ValueError(f'{name}={value!r}: expected {kind} from {low} to {high}')
    return int(value) if integer else float(value)


def check_pair(name: str, value: Any, low: float, high: float) -> list[int]:
    """Two integers, the first not larger than the second; ValueError otherwise."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(f'{name}={value!r}: expected two integers (smallest, largest)')
    pair = [int(check_number(name, each, low, high, integer=True)) for each in value]
    if pair[0] > pair[1]:
        raise ValueError(f'{name}={value!r}: the first must not be larger than the second')
    return pair


def _reason_to_build(root: Path, kind: FolderKind, options: dict[str, Any]) -> str | None:
    """Why ``root`` has to be built, None where it is what was asked for."""
    if not root.exists() or (root.is_dir() and not any(root.iterdir())):
        return 'there are none yet'
    marker = root / kind.marker
    if not marker.is_file():
        raise FileExistsError(
            f'{root} exists and is not a {kind.name} folder ({kind.marker} is missing): '
            'name another folder or remove this one'
        )
    try:
        stored = json.loads(marker.read_text())
    except (OSError, ValueError):
        return f'{kind.marker} cannot be read'
    if stored.get('fingerprint') != _fingerprint(kind, options):
        return 'those that are there were built with other options'
    if stored.get('contents') != _contents(root):
        return 'files are missing or were changed'
    return None


def _fingerprint(kind: FolderKind, options: dict[str, Any]) -> str:
    text = json.dumps({'format_version': kind.version, **options}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _contents(root: Path) -> dict[str, int]:
    """Number and total size of the built files: cheap to compare, and enough to notice a damaged copy."""
    files = [path for folder in ('images', 'annotations') for path in (root / folder).rglob('*.*')]
    return {'files': len(files), 'bytes': sum(path.stat().st_size for path in files)}


def _partial_prefix(root: Path) -> str:
    return f'.{root.name}.partial-'


def _remove_leftovers(root: Path) -> None:
    for path in root.parent.glob(f'{_partial_prefix(root)}*'):
        if time.time() - path.stat().st_mtime > STALE_SECONDS:
            _log(f'Removing {path}, left by an interrupted build.')
            shutil.rmtree(path, ignore_errors=True)


def _swap_in(partial: Path, root: Path, kind: FolderKind) -> None:
    """Put the finished folder in place of ``root``; the old one is moved out of the way first."""
    if root.exists():
        old = Path(tempfile.mkdtemp(prefix=_partial_prefix(root), dir=root.parent))
        os.replace(root, old / root.name)
        shutil.rmtree(old, ignore_errors=True)
    try:
        os.replace(partial, root)
    except OSError:
        # Another process that was building the same may have finished first.
        if not (root / kind.marker).is_file():
            raise
        _log(f'{root} was built by another process.', logging.WARNING)


def _log(message: str, level: int = logging.INFO) -> None:
    from mmengine.logging import (
        print_log,
    )  # takes seconds; programs that build are asked for their options first

    print_log(message, logger='current', level=level)
