"""Whether a checkpoint file is what was once written: its digest, the checksums inside, and that it stays so."""

from __future__ import annotations

import contextlib
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

from mmlape.whole_files import digest_of, sha256_of

from .errors import CheckpointError

# torch stores its records as they are; packed ones may be a bomb.
_MOST_UNPACKED = 4


def fault_of(path: Path) -> str | None:
    """What is wrong with a checkpoint file: ``'is damaged (in data/3)'``, ...; None for nothing.

    Its end is looked for, its digest compared, where there is one, and the checksums inside, which torch does not
    look at.
    """
    return _cut_off(path) or _digest_fault(path) or _archive_fault(path)


def _cut_off(path: Path) -> str | None:
    """By the list of records at the end."""
    try:
        if not _is_archive(path) or zipfile.is_zipfile(path):
            return None
    except zipfile.BadZipFile:  # it is there, and damaged
        return None
    return f'is not complete: it is cut off after {path.stat().st_size} bytes'


def _is_archive(path: Path) -> bool:
    """Whether it begins as one. Files in torch's formats of before 1.6 are none."""
    with path.open('rb') as file:
        return file.read(2) == b'PK'


def _digest_fault(path: Path) -> str | None:
    """By ``<path>.sha256`` beside the file, or beside what it is a link to."""
    for place in dict.fromkeys((path, path.resolve())):
        sidecar = digest_of(place)
        if sidecar.is_file():
            break
    else:
        return None
    # So long is a line at most: what is beside a file need not be a digest.
    with sidecar.open(encoding='utf-8', errors='replace') as file:
        expected = re.match(r'\\?([0-9a-fA-F]{64})\b', file.readline(65536))
    if expected is None:
        return f'has a digest ({sidecar.name}) that is none such as sha256sum writes'
    found, wanted = sha256_of(place), expected[1].lower()
    if found == wanted:
        return None
    return f'is damaged (sha256 {found[:12]}..., recorded {wanted[:12]}...) or was replaced'


def _archive_fault(path: Path) -> str | None:
    """By the checksums of its records."""
    if not _is_archive(path):
        return None
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(record.file_size for record in archive.infolist())
            if unpacked > _MOST_UNPACKED * size + 2**20:
                return f'would unpack to {unpacked / 2**20:.0f} MiB, which no checkpoint does'
            broken, names = archive.testzip(), archive.namelist()
    except Exception as error:  # a damaged archive makes zipfile stumble in many ways
        return f'is damaged: {error}'
    if not any(name.endswith('data.pkl') for name in names):
        return "is an archive, but none of torch's"
    return None if broken is None else f'is damaged (in {broken}): copy it again'


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
