"""Files that ``mmlape fit`` writes before it trains: splits, converted annotations and label maps, links to images."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from mmlape.atomic import atomic_write

# A text; what makes the bytes of a file, when it is written; or the file that a link leads to.
Content = str | Callable[[], bytes] | Path


def _bytes_of(content: str | Callable[[], bytes]) -> bytes:
    return content.encode() if isinstance(content, str) else content()


def _is_written(path: Path, content: Content) -> bool:
    """Whether the path holds the content already, as after a training that did not start."""
    if isinstance(content, Path):
        return os.path.samefile(path, content) or path.read_bytes() == content.read_bytes()
    return path.read_bytes() == _bytes_of(content)


def check_files(files: Mapping[str, Content]) -> None:
    """Refuse (ValueError) to write over a file with another content."""
    for path, content in files.items():
        if os.path.lexists(path) and not (
            os.path.isfile(path) and _is_written(Path(path), content)
        ):
            raise ValueError(
                f'{path} is there already, and is not written by this: give another --out'
            )


def write_files(files: Mapping[str, Content]) -> None:
    """Write all files; images are linked, or copied where a file system has no links."""
    for name, content in files.items():
        path = Path(name)
        if not isinstance(content, Path):
            atomic_write(path, _bytes_of(content))
        elif not os.path.lexists(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                path.symlink_to(os.path.abspath(content))
            except OSError:
                shutil.copyfile(content, path)
