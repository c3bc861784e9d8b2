"""Texts as pixels, in a font of this machine that has their characters."""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache
from itertools import groupby
from pathlib import Path

import numpy as np
from matplotlib import font_manager
from matplotlib.ft2font import FT2Font
from mmengine.logging import print_log
from PIL import Image, ImageDraw, ImageFont

_BASE = 'DejaVu Sans'  # comes with matplotlib; OpenCV's fonts have ASCII alone
_EAST_ASIAN = ('CJK', 'HANGUL', 'HIRAGANA', 'KATAKANA', 'BOPOMOFO')


@cache
def drawable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names as pictures show them: ``class 3`` where no font has the characters, which is said once."""
    missing = [k for k, name in enumerate(names) if any(font is None for _, font in _runs(name))]
    if missing:
        first = names[missing[0]]
        odd = next(text[0] for text, font in _runs(first) if font is None)
        script = unicodedata.name(odd, '?').split()[0]
        package = 'fonts-noto-cjk' if script in _EAST_ASIAN else 'fonts-noto-core'
        print_log(
            f'no font of this machine has the characters of {first!r}, which pictures call {f"class {missing[0]}"!r} '
            f'({len(missing)} such names): install one (Debian, Ubuntu: apt install {package})',
            logger='current',
            level=logging.WARNING,
        )
    return tuple(f'class {k}' if k in missing else name for k, name in enumerate(names))


def text_size(text: str, size: int) -> tuple[int, int]:
    """Width and height in pixels of a text in letters of ``size``."""
    fonts = _fonts(text, size)
    width = sum(font.getlength(run) for run, font in fonts)
    return int(np.ceil(width)), sum(_heights(fonts))


def write(
    picture: np.ndarray, place: Sequence[int], text: str, size: int, ink: Sequence[int]
) -> None:
    """Write a text into an image ``(H, W, 3)``; ``place``: column and row of its upper left corner; the ink as the
    image's channels are."""
    width, height = text_size(text, size)
    left, top = place
    part = picture[top : top + height, left : left + width]
    tag, fonts, x = Image.fromarray(part), _fonts(text, size), 0.0
    for run, font in fonts:
        # On one baseline.
        ImageDraw.Draw(tag).text((x, _heights(fonts)[0]), run, tuple(ink), font, anchor='ls')
        x += font.getlength(run)
    part[:] = np.asarray(tag)


@lru_cache(4096)  # a long video has many texts
def _fonts(text: str, size: int) -> list[tuple[str, ImageFont.FreeTypeFont]]:
    base = font_manager.findfont(_BASE)
    return [(run, _font(font or base, size)) for run, font in _runs(text)] or [
        ('', _font(base, size))
    ]


def _heights(fonts: list[tuple[str, ImageFont.FreeTypeFont]]) -> tuple[int, int]:
    """Pixels above and below the baseline."""
    above, below = zip(*(font.getmetrics() for _, font in fonts))
    return max(above), max(below)


@lru_cache(32)
def _font(file: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(file, size)


@lru_cache(4096)
def _runs(text: str) -> tuple[tuple[str, str | None], ...]:
    """Parts of a text with the file of a font for each; None where there is none."""
    base = font_manager.findfont(_BASE)
    known = _characters(base)
    parts = [(has, ''.join(run)) for has, run in groupby(text, lambda one: ord(one) in known)]
    return tuple((run, base if has else _font_with(frozenset(run))) for has, run in parts)


@cache
def _font_with(characters: frozenset[str]) -> str | None:
    wanted = set(map(ord, characters))
    # matplotlib's own list is cached on disk, without fonts that were installed later.
    files = sorted(font_manager.findSystemFonts(), key=_plainness)
    return next((file for file in files if wanted <= _characters(file)), None)


def _plainness(file: str) -> tuple[bool, bool, str]:
    """Sort regular fonts first, and those without serifs."""
    name = Path(file).stem.lower()
    special = any(word in name for word in ('bold', 'italic', 'oblique', 'light', 'thin', 'black'))
    return special, 'sans' not in name, name


@lru_cache(8)  # not of every font of the machine
def _characters(file: str) -> frozenset[int]:
    """Code points of a font's glyphs; none where it cannot be read or scaled."""
    try:
        ImageFont.truetype(file, 12)
        return frozenset(FT2Font(file).get_charmap())
    except (OSError, RuntimeError):
        return frozenset()
