"""Atomic writes: a file has its old or its new content, also if the process is killed or the disk is full.

It is written beside its place as a draft, synced and renamed. Standard library only: commands import this before they
have parsed their options.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

_DRAFT, _DIGEST = '.mmlape-draft', '.sha256'


def digest_of(path: Path) -> Path:
    """``<path>.sha256``, as ``sha256sum`` writes and checks it."""
    return path.with_name(path.name + _DIGEST)


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(2**22):
            digest.update(chunk)
    return digest.hexdigest()


def atomic_write(path: Path, data: bytes, digest: bool = False) -> None:
    """Write all of ``path``; its folder is made if it does not exist.

    Args:
        path: The file.
        data: Its content.
        digest: Whether to write ``NAME.sha256`` as well. It never contradicts the file, but for a moment there is none.

    Raises:
        OSError: If it cannot be written, or reads back differently (``EIO``). The old file is unchanged.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256(data).hexdigest()
    drafts = [_draft(path, data)]
    try:
        if digest:
            if sha256_of(drafts[0]) != wanted:
                raise OSError(errno.EIO, 'not read back as it was written', str(path))
            drafts.append(_draft(digest_of(path), f'{wanted}  {path.name}\n'.encode()))
            digest_of(path).unlink(missing_ok=True)
        os.replace(drafts[0], path)
        _sync_folder(path.parent)
        if digest:
            os.replace(drafts[1], digest_of(path))
            _sync_folder(path.parent)
    except BaseException:
        for draft in drafts:
            draft.unlink(missing_ok=True)
        raise


def remove_leftovers(folder: Path) -> list[str]:
    """Remove drafts of runs that were killed, and digests whose file is gone; return their names."""
    lost = [*folder.glob(f'.*{_DRAFT}')]
    lost += [path for path in folder.glob(f'*.pth{_DIGEST}') if not path.with_suffix('').exists()]
    for path in lost:
        path.unlink(missing_ok=True)
    return [path.name for path in lost]


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f'.{path.name}.{os.getpid()}{_DRAFT}')  # no other process uses this name
    try:
        with draft.open('wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)  # frees its space on a full disk
        raise
    return draft


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system supports it
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
