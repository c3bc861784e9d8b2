"""Whether a checkpoint file is what was once written: its digest, the checksums inside, and that it stays so."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from .errors import CheckpointError

DIGEST = '.sha256'
_CHUNK = 2**22
# torch stores its records as they are; packed ones may be a bomb.
_MOST_UNPACKED = 4


def sha256_of(path: Path) -> str:
    """The SHA-256 digest of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open('rb') as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def write_digest(path: Path) -> Path:
    """Write ``<path>.sha256``, as ``sha256sum -c`` reads it, by way of another name: it is whole or not there."""
    sidecar = path.with_name(path.name + DIGEST)
    draft = sidecar.with_name(f'.{sidecar.name}.{os.getpid()}')
    try:
        draft.write_text(f'{sha256_of(path)}  {path.name}\n', encoding='utf-8')
        os.replace(draft, sidecar)
    finally:
        draft.unlink(missing_ok=True)
    return sidecar


def check_digest(path: Path) -> None:
    """Compare a file with ``<path>.sha256``, where there is one beside it (or beside what it is a link to).

    Raises:
        CheckpointError: If they differ, or the digest is none.
    """
    for place in dict.fromkeys((path, path.resolve())):
        sidecar = place.with_name(place.name + DIGEST)
        if sidecar.is_file():
            break
    else:
        return
    # So long is a line at most: what is beside a file need not be a digest.
    with sidecar.open(encoding='utf-8', errors='replace') as file:
        expected = re.match(r'\\?([0-9a-fA-F]{64})\b', file.readline(65536))
    if expected is None:
        raise CheckpointError(f'{str(sidecar)!r} is no digest such as sha256sum writes')
    if sha256_of(place) != expected[1].lower():
        raise CheckpointError(
            f'{str(path)!r} is not the file that {sidecar.name} was made of: it is damaged or was replaced'
        )


def check_archive(path: Path) -> None:
    """Read the records of a file of ``torch.save`` once and compare them with their checksums, which torch does not.

    Files in torch's old format, before 1.6, have none.

    Raises:
        CheckpointError: If a record is damaged, or much larger unpacked than the file.
    """
    with path.open('rb') as file:
        if file.read(2) != b'PK':
            return
    size = path.stat().st_size
    try:
        if not zipfile.is_zipfile(path):
            raise CheckpointError(
                f'{str(path)!r} cannot be read as a checkpoint: it is cut off after {size} bytes'
            )
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(record.file_size for record in archive.infolist())
            if unpacked > _MOST_UNPACKED * size + 2**20:
                raise CheckpointError(
                    f'{str(path)!r} would unpack to {unpacked / 2**20:.0f} MiB, which no checkpoint does'
                )
            broken = archive.testzip()
            names = archive.namelist()
    except CheckpointError:
        raise
    except Exception as error:  # a damaged archive makes zipfile stumble in many ways
        raise CheckpointError(f'{str(path)!r} is damaged: {error}') from error
    if not any(name.endswith('data.pkl') for name in names):
        raise CheckpointError(f"{str(path)!r} is an archive, but none of torch's")
    if broken is not None:
        raise CheckpointError(f'{str(path)!r} is damaged (in {broken}): copy it again')


@contextlib.contextmanager
def unchanged(path: Path) -> Iterator[None]:
    """Refuse what was read in the block if the file was written or replaced meanwhile.

    Raises:
        CheckpointError: If it was.
    """
    before = _identity(path)
    yield
    if _identity(path) != before:
        raise CheckpointError(
            f'{str(path)!r} changed while it was read: is it still being written or copied?'
        )


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
