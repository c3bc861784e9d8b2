"""Sources of images to predict: files, folders, patterns or lists, and the frames of videos."""

from __future__ import annotations

import glob
import logging
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mmcv
import numpy as np
from mmengine.logging import print_log

from .reading import IMAGES, VIDEOS, below, check_regular, count_of_macos, short, short_name, shown
from .results import read_image

_LONGEST = 2**16  # characters of a line of the standard input; a path has at most 4096 bytes


@dataclass(frozen=True)
class Source:
    """An image or a video.

    Attributes:
        path: The file.
        name: Its place in the output, without a suffix, as short as can be: below the folder that was given; with more
            of its path where others have the same.
    """

    path: Path
    name: Path

    @property
    def is_video(self) -> bool:
        """Whether it is a video, by its suffix."""
        return self.path.suffix.lower() in VIDEOS

    def video(self) -> mmcv.VideoReader:
        """The video.

        Raises:
            ValueError: If it has no frame that can be read.
        """
        check_regular(self.path)
        video = mmcv.VideoReader(str(self.path))
        if video.frame_cnt <= 0 or video.fps <= 0:  # OpenCV 5 says -1 where OpenCV 4 says 0
            raise ValueError(f'{shown(self.path)} cannot be read as a video')
        return video

    def frames(self, read: Callable[[Path], np.ndarray] = read_image) -> Iterator[np.ndarray]:
        """The image by ``read``, or the frames of the video, ``(H, W, 3)`` uint8, BGR.

        Raises:
            ValueError: If it cannot be read.
        """
        if self.is_video:
            # The last frames of a file may be announced and missing.
            yield from (frame for frame in self.video() if frame is not None)
        else:
            yield read(self.path)


def find_sources(arguments: Sequence[str], outs: Sequence[Path] = ()) -> list[Source]:
    """Images and videos that the arguments of a command name, each once.

    Args:
        arguments: Files, folders (searched to the bottom), patterns such as ``'shots/*.png'``, and ``-`` for names in
            the standard input, one per line.
        outs: Folders whose content is left out where they lie in one of these folders. Default none.

    Named pipes, devices and links to nothing are among the sources: reading one refuses it.

    Raises:
        ValueError: If an argument names nothing.
    """
    found: dict[Path, tuple[Path, Path]] = {}  # absolute: as given, and below the argument's folder
    for argument in arguments:
        lines = _input_lines() if argument == '-' else [argument]
        for line in filter(None, lines):
            for path in _found(line, [*map(_whole, outs)]):
                name = path.relative_to(line) if os.path.isdir(line) else Path(path.name)
                found.setdefault(_whole(path), (path, name))
    if not found:
        raise ValueError(f'there is nothing to predict in {shown(", ".join(arguments))}')
    names = _distinct({whole: len(name.parts) for whole, (_, name) in found.items()})
    names = [name.with_name(short_name(name.name)) for name in names]
    plain = [name.with_suffix('') for name in names]
    stems = Counter(plain)
    plain = [stem if stems[stem] == 1 else name for stem, name in zip(plain, names)]
    if len({*plain}) < len(plain):  # a.jpg and a.png beside a.jpg.png
        plain = names
    return [Source(path, name) for (path, _), name in zip(found.values(), plain)]


def _distinct(parts: dict[Path, int]) -> list[Path]:
    """The last ``parts`` of absolute paths; of those that are equal, one more until none are."""
    while True:
        names = [Path(*path.parts[1:][-count:]) for path, count in parts.items()]
        counts = Counter(names)
        if len(counts) == len(names):
            return names
        for path, name in zip(parts, names):
            parts[path] += counts[name] > 1


def _whole(path: Path) -> Path:
    """Absolute, without ``..``; a link keeps its name."""
    return Path(os.path.abspath(path))


def _input_lines() -> Iterator[str]:
    """Lines of the standard input, without spaces around them."""
    try:
        while line := sys.stdin.readline(_LONGEST):
            if len(line) == _LONGEST:
                raise ValueError(f'the standard input must hold a name per line, got {short(line)}')
            yield line.strip()
    except UnicodeDecodeError as error:
        raise ValueError(f'names in the standard input must be UTF-8: {error}') from None


def _found(argument: str, outs: Sequence[Path]) -> list[Path]:
    # Not the methods of Path, which raise for names that are too long.
    if os.path.isdir(argument):
        path = Path(argument)
        known = (*IMAGES, *VIDEOS)
        found = [each for each in below(path)[0] if each.suffix.lower() in known]
        if beside := count_of_macos(path):
            print_log(
                f'{shown(argument)}: {beside} files of macOS (._*) are left out',
                logger='current',
                level=logging.WARNING,
            )
        within = [out for out in outs if not _whole(path).is_relative_to(out)]
        found = [each for each in found if not {*within} & {*_whole(each).parents}]
        if not found:
            raise ValueError(f'the folder {argument!r} has no image and no video in it')
        return found
    if os.path.lexists(argument):
        return [Path(argument)]
    found = sorted(Path(each) for each in glob.glob(argument, recursive=True))
    if not found:
        raise ValueError(
            f'{short(argument)} is neither a file nor a folder, and no file is named so'
        )
    return [each for each in found if not each.is_dir()]
