"""Checkpoints in a folder, and in several files that an index names, as Hugging Face's libraries write them."""

from __future__ import annotations

import json
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from .errors import CheckpointError, MissingCheckpointError

_INDEX = '.index.json'
# In this order: what can run nothing first.
NAMES = (
    'model.safetensors', f'model.safetensors{_INDEX}', 'pytorch_model.bin', f'pytorch_model.bin{_INDEX}'
)  # fmt: skip
_MOST_BYTES = 2**26


def is_index(path: Path) -> bool:
    """Whether a file says by its name that it is an index."""
    return path.name.endswith(_INDEX)


def file_in(path: Path) -> Path:
    """The checkpoint file, or the index, that a folder holds; ``path`` itself where it is none.

    Raises:
        CheckpointError: If the folder has neither.
    """
    if not path.is_dir():
        return path
    found = next((path / name for name in NAMES if (path / name).is_file()), None)
    if found is None:
        raise CheckpointError(
            f'{str(path)!r} is a folder, not a checkpoint file, and holds none of {", ".join(NAMES)}'
        )
    return found


def shards_of(index: Path) -> dict[Path, set[str]]:
    """The files that an index names, all of them in its folder, and the entries of each.

    Raises:
        CheckpointError: If it is no index, or names a file elsewhere.
        MissingCheckpointError: If a file is not there.
    """
    shards: dict[Path, set[str]] = {}
    for entry, name in _places(index).items():
        if not isinstance(name, str) or not _is_plain(name):
            raise CheckpointError(
                f'{str(index)!r} names {name!r} for {entry!r}, which is no file beside it'
            )
        shards.setdefault(index.parent / name, set()).add(entry)
    missing = [path.name for path in shards if not path.is_file()]
    if missing:
        raise MissingCheckpointError(
            f'{str(index)!r} names {len(shards)} files, of which {len(missing)} are not there: {", ".join(missing)}'
        )
    return shards


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The content of a small JSON file, an object.

    Raises:
        CheckpointError: If it is none, and so is not ``what`` it should be.
    """
    fault = f'{str(path)!r} is no {what}: '
    if path.stat().st_size > _MOST_BYTES:
        raise CheckpointError(f'{fault}it is larger than {_MOST_BYTES} bytes')
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{fault}it cannot be read as JSON: {error}') from None
    if not isinstance(content, dict):
        raise CheckpointError(f'{fault}it holds a {type(content).__name__}')
    return content


def _places(index: Path) -> dict[str, Any]:
    places = read_json(index, 'index').get('weight_map')
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f'{str(index)!r} is no index: it has no weight_map with names of files'
        )
    return places


def _is_plain(name: str) -> bool:
    """Whether a name, read on any system, is that of a file and no path; and no index once more."""
    plain = PurePosixPath(name).name == name == PureWindowsPath(name).name
    return plain and name not in ('', '..') and not name.endswith(_INDEX)
