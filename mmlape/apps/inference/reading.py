"""Files of users: regular files alone are opened, and each refusal names the file and what is wrong with it.

Named pipes and devices would block, or never end. Standard library only: `mmlape fit` reads its data with this too.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

# Of images that are looked for in folders, in lower case: what OpenCV and Pillow both read, and arrays.
IMAGES = ('.jpg', '.jpeg', '.png', '.bmp', '.tif', '.tiff', '.webp', '.ppm', '.pgm', '.npy')
VIDEOS = ('.mp4', '.avi', '.mov', '.mkv', '.webm')
MOST_TEXT = 2**28  # bytes of a text: lists, label files, YAML, XML; far above any real one
# Bytes of a file's name: 255 without the number of a frame, a suffix, and what atomic writes append.
_MOST_IN_NAME = 220
_KINDS = {
    'a folder': stat.S_ISDIR,
    'a named pipe': stat.S_ISFIFO,
    'a device': stat.S_ISCHR,
    'a disk': stat.S_ISBLK,
    'a socket': stat.S_ISSOCK,
}


def below(folder: str | Path) -> tuple[list[Path], list[Path]]:
    """Files of a folder, searched to the bottom, in order; folders that links lead to are searched too.

    Links to folders in or around this one are not followed, and none is searched twice: links may lead in a circle.
    They are the second part of the result. Files that macOS writes beside others (:func:`is_of_macos`) are left out.
    """
    top = os.path.realpath(folder)
    seen = {top}
    files, inner = [], []
    for base, folders, names in os.walk(folder, followlinks=True):
        folders.sort()  # of two links to one folder, the first counts
        for name in list(folders):
            path = os.path.join(base, name)
            place = os.path.realpath(path)
            linked = os.path.islink(path)
            if place in seen or (linked and (_is_in(place, top) or _is_in(top, place))):
                inner.append(Path(path))
                folders.remove(name)
            seen.add(place)
        files += [Path(base, name) for name in names if not is_of_macos(name)]
    return sorted(files), inner


def is_of_macos(name: str) -> bool:
    """Whether macOS wrote this file beside another, with attributes of that: ``._1.jpg`` is no image."""
    return name.startswith('._')


def count_of_macos(folder: str | Path) -> int:
    """How many such files a folder holds, without those behind links."""
    return sum(is_of_macos(name) for *_, names in os.walk(folder) for name in names)


def _is_in(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder


def shown(text: str | Path) -> str:
    """A text or path for a message of one line: control characters and lone surrogates as Python escapes them."""
    return ''.join(
        each if each.isprintable() else each.encode('unicode_escape').decode() for each in str(text)
    )


def short(value: object) -> str:
    """The first 80 characters of a text or number as Python writes it; of anything else its type, as nested values may
    be as large as they like."""
    if isinstance(value, str):
        return repr(value[:80]) + '...' * (len(value) > 80)
    if isinstance(value, int) and value.bit_length() > 250:
        return f'an integer of {value.bit_length()} bits'
    return repr(value) if isinstance(value, (int, float)) or value is None else f'{type(value)}'


def check_regular(path: str | Path) -> int:
    """The size in bytes of a regular file, also behind links.

    Raises:
        ValueError: If it is missing, or anything else.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        what = 'it is a link to nothing' if os.path.islink(path) else 'there is no such file'
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        what = getattr(error, 'strerror', None) or str(error)
    else:
        if stat.S_ISREG(status.st_mode):
            return status.st_size
        kind = next((kind for kind, test in _KINDS.items() if test(status.st_mode)), 'special')
        what = f'it is {kind}, and must be a regular file'
    raise ValueError(f'{shown(path)} cannot be read: {what}')


def check_fits_memory(path: str | Path, most: int | None = None) -> None:
    """Refuse (ValueError) what is no regular file, or larger than ``most`` bytes or than the free memory."""
    size, free = check_regular(path), available_memory()
    if most is not None and size > most:
        raise ValueError(f'{shown(path)} cannot be read: it has {size} bytes, at most {most}')
    if size > free:
        raise ValueError(
            f'{shown(path)} cannot be read: it has {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free'
        )


def read_bytes(path: str | Path, most: int | None = None) -> bytes:
    """A file as a whole.

    Raises:
        ValueError: If it is not a regular file, has more than ``most`` bytes (default: any number), does not fit into
            memory, or cannot be read.
    """
    check_fits_memory(path, most)
    try:
        return Path(path).read_bytes()
    except (OSError, MemoryError) as error:
        what = getattr(error, 'strerror', None) or 'it does not fit into memory'
        raise ValueError(f'{shown(path)} cannot be read: {what}') from None


def read_text(path: str | Path, most: int = MOST_TEXT) -> str:
    """A text file in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: See :func:`read_bytes`; or it is not UTF-8.
    """
    content = read_bytes(path, most)
    try:
        return content.decode('utf-8-sig')
    except UnicodeDecodeError as error:
        looks = ', and looks like UTF-16' if content[:2] in (b'\xff\xfe', b'\xfe\xff') else ''
        raise ValueError(
            f'{shown(path)} is not UTF-8 (byte {error.start}){looks}: save it as UTF-8'
        ) from None


def short_name(name: str) -> str:
    """A file's name to which a suffix can be added: a long one is cut, and ends in a digest of the whole."""
    content = os.fsencode(name)
    if len(content) <= _MOST_IN_NAME:
        return name
    digest = hashlib.sha256(content).hexdigest()[:8]
    return f'{content[: _MOST_IN_NAME - 9].decode(errors="ignore")}-{digest}'


def available_memory() -> int:
    """Bytes that this machine can still give to processes, free space for swapping included.

    Where the system does not say that (macOS), all of its memory; in a container, at most its limit.
    """
    pages = os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')
    try:
        lines = Path('/proc/meminfo').read_text(encoding='ascii').splitlines()
        entries = {
            name: int(rest.split()[0]) for name, _, rest in (x.partition(':') for x in lines)
        }
        pages = 1024 * (entries['MemAvailable'] + entries['SwapFree'])
    except (OSError, ValueError, KeyError, IndexError):
        pass
    try:
        limit = int(Path('/sys/fs/cgroup/memory.max').read_text(encoding='ascii'))
    except (OSError, ValueError):  # no such limit is "max"
        return pages
    return min(pages, limit)
