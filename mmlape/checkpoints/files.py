"""Checkpoint files: where they are (folders, shards, downloads), whether they are intact, and how they are written."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlparse

import torch
from mmengine.dist import barrier, is_main_process
from safetensors.torch import save
from torch import Tensor

from mmlape.atomic import atomic_write, digest_of, sha256_of
from mmlape.checks import check_target

from .report import CheckpointError, DownloadError

SAFETENSORS = '.safetensors'
INDEX = '.index.json'
# Preferred files of a folder, safe formats first.
NAMES = (
    'model.safetensors', f'model.safetensors{INDEX}', 'pytorch_model.bin', f'pytorch_model.bin{INDEX}'
)  # fmt: skip
# A file name without a path on any system, and not of one more index.
_PLAIN = re.compile(r'(?!.*\.index\.json$)\w[\w.+-]*')
# torch stores its records uncompressed; compressed ones may be a bomb.
_MOST_UNPACKED = 4


def file_in(path: Path) -> Path:
    """The checkpoint file, or the index, in a folder; ``path`` itself where it is not a folder."""
    if not path.is_dir():
        return path
    found = next((path / name for name in NAMES if (path / name).is_file()), None)
    if found is None:
        raise CheckpointError(
            f'{str(path)!r} is a folder, not a checkpoint file, and holds none of {", ".join(NAMES)}'
        )
    return found


def shards_of(index: Path) -> dict[Path, set[str]]:
    """The files that an index names, all of them in its folder, and the entries of each."""
    weight_map = read_json(index, 'index').get('weight_map')
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f'{str(index)!r} is not an index: it has no weight_map with file names'
        )
    shards: dict[Path, set[str]] = {}
    for entry, name in weight_map.items():
        if not isinstance(name, str) or not _PLAIN.fullmatch(name):
            raise CheckpointError(
                f'{str(index)!r} names {name!r} for {entry!r}, which is not a file beside it'
            )
        shards.setdefault(index.parent / name, set()).add(entry)
    return shards


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The content of a small JSON file, an object; CheckpointError if it is not a ``what``."""
    return parse_json(path.read_bytes(), f'{str(path)!r} is not a valid {what}')


def parse_json(text: str | bytes, fault: str) -> dict[str, Any]:
    """A JSON object; else CheckpointError, whose message begins with ``fault``."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f'{fault}: {error}') from None
    if not isinstance(content, dict):
        raise CheckpointError(f'{fault}: it holds a {type(content).__name__}')
    return content


@contextlib.contextmanager
def main_process_first() -> Iterator[None]:
    """Run the block in the main process before the others, which then find what it has downloaded."""
    if not is_main_process():
        barrier()
    try:
        yield
    finally:
        if is_main_process():
            barrier()


def download_path(address: str) -> Path:
    """Where the file behind an address is cached: in ``torch.hub``'s folder, in a folder for this address alone."""
    parts = urlparse(address)
    name = PurePosixPath(parts.path).name
    if not name:
        raise CheckpointError(f'the address {address!r} names no file')
    digest = hashlib.sha256(address.encode()).hexdigest()[:12]
    return Path(torch.hub.get_dir(), 'checkpoints', f'{parts.hostname or "file"}-{digest}', name)


def download_checkpoint(address: str) -> Path:
    """The file behind an http(s) address, downloaded unless it is in the cache; DownloadError if it cannot be."""
    path = download_path(address)
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(address, str(path), progress=False)
        except OSError as error:
            raise DownloadError(
                f'{address} cannot be downloaded: {error}. Without a network, copy the file to {path}'
            ) from None
    return path


def fault_of(path: Path) -> str | None:
    """Return what is wrong with a checkpoint file: its digest, format, end, or the checksums inside, which torch does
    not compare; None if nothing is."""
    if fault := _digest_fault(path):
        return fault
    with path.open('rb') as file:
        start = file.read(512)
    archive = start.startswith(b'PK')
    older = start.startswith(b'\x80') or start[257:262] == b'ustar'
    if start.startswith(b'version https://git-lfs'):
        return 'is a pointer of Git LFS, not the file (`git lfs pull`)'
    if path.suffix != SAFETENSORS and not (archive or older):
        size = path.stat().st_size
        return f"is not complete, or in none of torch's formats: {size} bytes (a web page?)"
    return _archive_fault(path) if archive else None


def _digest_fault(path: Path) -> str | None:
    """Compare the file with the digest in ``<path>.sha256`` beside it, or beside the file that it is a link to."""
    sidecars = (digest_of(path), digest_of(path.resolve()))
    sidecar = next(filter(Path.is_file, sidecars), None)
    if sidecar is None:
        return None
    # Longer first lines are not a digest.
    with sidecar.open(encoding='utf-8', errors='replace') as file:
        expected = re.match(r'\\?([0-9a-fA-F]{64})\b', file.readline(65536))
    if expected is None:
        return f'has a digest ({sidecar.name}) that is not in the format of sha256sum'
    found, wanted = sha256_of(path), expected[1].lower()
    if found == wanted:
        return None
    return f'is damaged (sha256 {found[:12]}..., recorded {wanted[:12]}...) or was replaced'


def _archive_fault(path: Path) -> str | None:
    """Check an archive by the checksums of its records."""
    try:
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(record.file_size for record in archive.infolist())
            if unpacked > _MOST_UNPACKED * path.stat().st_size + 2**20:
                return f'would unpack to {unpacked / 2**20:.0f} MiB, which no checkpoint does'
            broken, names = archive.testzip(), archive.namelist()
    except Exception as error:  # a damaged archive makes zipfile stumble in many ways
        return f'is not complete, or is damaged: {error}'
    if not any(name.endswith('data.pkl') for name in names):
        return "is an archive, but none of torch's"
    return None if broken is None else f'is damaged (in {broken}): copy it again'


def write_checkpoint(
    path: str | Path,
    state: Mapping[str, Tensor],
    meta: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a state dict atomically, with its digest in ``<path>.sha256``.

    Args:
        path: ``.pth``: ``{'meta': ..., 'state_dict': ...}``, as MMEngine reads it; ``.safetensors``: the tensors, with
            those values of ``meta`` that are strings, and its ``dataset_meta`` as JSON. Its folder is made.
        state: Names to tensors.
        meta: What is said of them. Default nothing.
        overwrite: Replace an existing file. Default False.

    Raises:
        ValueError: See :func:`check_target`.
    """
    path = check_target(path, overwrite)
    meta = dict(meta or {})
    # Copies: a view would be saved with all that it is a view of.
    tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in state.items()}
    if path.suffix == SAFETENSORS:
        if isinstance(names := meta.get('dataset_meta'), Mapping):
            meta['dataset_meta'] = json.dumps(names)
        strings = {name: text for name, text in meta.items() if isinstance(text, str)}
        content = save(tensors, {'format': 'pt', **strings})
    else:
        buffer = io.BytesIO()
        torch.save(dict(meta=meta, state_dict=tensors), buffer)
        content = buffer.getvalue()
    atomic_write(path, content, digest=True)
    return path
