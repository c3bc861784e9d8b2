"""Files that are there whole or not at all, with a digest beside them.

A name is given to a file only when all of it is on the disk: it is written beside as a draft, read back, and renamed.
So a process that is killed, and a disk that is full, leave what was there before, and at most a draft.
"""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import suppress
from pathlib import Path

from mmengine.fileio import LocalBackend, register_backend

__all__ = ['BACKEND', 'WholeFileBackend', 'digest_fault', 'remove_leftovers', 'write_whole']

BACKEND = 'mmlape_whole_files'
_DRAFT, _DIGEST = '.mmlape-draft', '.sha256'


class WholeFileBackend(LocalBackend):
    """MMEngine's backend of local files (``backend_args=dict(backend='mmlape_whole_files')``) that writes whole files.

    ``put`` leaves ``NAME.sha256`` beside the file, as ``sha256sum`` writes and checks it; ``remove`` takes it away.
    """

    def put(self, obj, filepath) -> None:
        """Write bytes as in :func:`write_whole`, with a digest."""
        write_whole(Path(filepath), bytes(obj), digest=True)

    def remove(self, filepath) -> None:
        """Remove a file and its digest."""
        super().remove(filepath)
        _digest_of(Path(filepath)).unlink(missing_ok=True)


register_backend(BACKEND, WholeFileBackend, force=True)


def write_whole(path: Path, data: bytes, digest: bool = False) -> None:
    """Write ``path`` so that there is always its old or its new content, also if the machine stops meanwhile.

    Args:
        path: Its folder is made if it does not exist.
        data: All of the file.
        digest: Whether to write ``NAME.sha256`` as well. A digest is never beside a file that it does not fit, but
            for a moment there may be none.

    Raises:
        OSError: If it cannot be written, or is not read back as it was written (``EIO``). The old file is still there.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    wanted = hashlib.sha256(data).hexdigest()
    drafts = [_draft(path, data)]
    try:
        if digest:
            if _sha256(drafts[0]) != wanted:
                raise OSError(errno.EIO, 'not read back as it was written', str(path))
            drafts.append(_draft(_digest_of(path), f'{wanted}  {path.name}\n'.encode()))
            _digest_of(path).unlink(missing_ok=True)
        os.replace(drafts[0], path)
        _sync_folder(path.parent)
        if digest:
            os.replace(drafts[1], _digest_of(path))
            _sync_folder(path.parent)
    except BaseException:
        for draft in drafts:
            draft.unlink(missing_ok=True)
        raise


def digest_fault(path: Path) -> str | None:
    """What is wrong with a file by its digest; None where there is no digest, or it fits.

    Raises:
        OSError: If the file cannot be read.
    """
    try:
        wanted = _digest_of(path).read_text(encoding='utf-8').split()[0]
    except (OSError, UnicodeDecodeError, IndexError):
        return None
    found = _sha256(path)
    return (
        None
        if found == wanted
        else f'is damaged (sha256 {found[:12]}..., recorded {wanted[:12]}...)'
    )


def remove_leftovers(folder: Path) -> list[str]:
    """Remove drafts of runs that were killed, and digests whose file is gone; return their names."""
    lost = [*folder.glob(f'.*{_DRAFT}')]
    lost += [path for path in folder.glob(f'*.pth{_DIGEST}') if not path.with_suffix('').exists()]
    for path in lost:
        path.unlink(missing_ok=True)
    return [path.name for path in lost]


def _draft(path: Path, data: bytes) -> Path:
    draft = path.with_name(f'.{path.name}{_DRAFT}')
    try:
        with draft.open('wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)  # a full disk has its space back
        raise
    return draft


def _digest_of(path: Path) -> Path:
    return path.with_name(path.name + _DIGEST)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system can
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
