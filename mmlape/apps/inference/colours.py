"""Colours of classes: a data set's own, or well separated ones, also for colour-blind readers; and of texts on them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

INSTANCES = 20  # colours for the objects of a single class, which take turns
_COCO = (
    (220, 20, 60),
    (119, 11, 32),
    (0, 0, 142),
)  # how the palette of person, bicycle, car begins
_FIRST = (240, 160, 0)
# Linear RGB as people without red or green cones see it (Machado, Oliveira and Fernandes 2009, table 1, severity 1).
_PROTANOPIA = (
    (0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998),
)  # fmt: skip
_DEUTERANOPIA = (
    (0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881),
)  # fmt: skip
# Linear RGB to cone responses, and their cube roots to Oklab (Ottosson 2020).
_CONES = (
    (0.4122214708, 0.5363325363, 0.0514459929), (0.2119034982, 0.6806995451, 0.1073969566),
    (0.0883024619, 0.2817188376, 0.6299787005),
)  # fmt: skip
_OKLAB = (
    (0.2104542553, 0.7936177850, -0.0040720468), (1.9779984951, -2.4285922050, 0.4505937099),
    (0.0259040371, 0.7827717662, -0.8086757660),
)  # fmt: skip


def colours_of(classes: Sequence[str], palette: Any = None) -> np.ndarray:
    """RGB colours ``(len(classes), 3)`` uint8: the data set's ``palette`` if it is one of these classes, else ours.

    A class that is called background is black.
    """
    if _is_own(classes, palette):
        return np.array(palette, np.uint8)
    background = [name.lower().strip('_') == 'background' for name in classes]
    return np.where(np.array(background)[:, None], np.uint8(0), separated(len(classes)))


def is_by_instance(classes: Sequence[str], palette: Any = None) -> bool:
    """Whether each object gets its own colour: a single class, without a palette."""
    return len(classes) == 1 and not _is_own(classes, palette)


def _is_own(classes: Sequence[str], palette: Any) -> bool:
    """Whether a palette was made for these classes: upstream gives others COCO's or random colours."""
    if not isinstance(palette, (list, tuple, np.ndarray)) or len(palette) != len(classes):
        return False
    colours = np.array(palette)
    if [*classes[:1]] != ['person'] and np.array_equal(colours[:3], _COCO):
        return False
    # As MMSegmentation's BaseSegDataset draws them.
    drawn = np.random.RandomState(42).randint(0, 255, size=(len(classes), 3))
    return not np.array_equal(colours, drawn)


@cache
def separated(count: int) -> np.ndarray:
    """RGB colours ``(count, 3)`` uint8, each far from all before it and twice as far from the one before it.

    Distances are those of Oklab; what people without red or green cones see counts if it is less than half of that.
    """
    steps = np.linspace(0, 255, 16).round()
    colours = np.stack(np.meshgrid(steps, steps, steps, indexing='ij'), -1).reshape(-1, 3)
    lightness, *chroma = _oklab(_linear(colours)).T
    # Neither black, white nor grey, and none that dazzles.
    usable = (lightness > 0.4) & (lightness < 0.92) & (np.hypot(*chroma) > 0.06)
    colours = colours[usable & (np.hypot(*chroma) < 0.23)]
    light = _linear(colours)
    seen, *blind = (
        _oklab((light @ np.array(matrix).T).clip(0, 1))
        for matrix in (np.eye(3), _PROTANOPIA, _DEUTERANOPIA)
    )
    least = np.full(len(colours), np.inf)
    chosen = [int(np.abs(colours - _FIRST).sum(1).argmin())]
    while len(chosen) < count:
        from_last = np.linalg.norm(seen - seen[chosen[-1]], axis=1)
        for view in blind:
            from_last = np.minimum(from_last, 2 * np.linalg.norm(view - view[chosen[-1]], axis=1))
        least = np.minimum(least, from_last)
        chosen.append(int(np.minimum(least, from_last / 2).argmax()))
    return colours[chosen[:count]].astype(np.uint8)


def ink_on(colour: Sequence[int]) -> tuple[int, int, int]:
    """Black or white, whichever has more contrast on an RGB colour: at least 4.58 (WCAG 2 asks for 4.5)."""
    luminance = _linear(np.array(colour)) @ (0.2126, 0.7152, 0.0722)
    return (0, 0, 0) if (luminance + 0.05) ** 2 > 0.05 * 1.05 else (255, 255, 255)


def _linear(colours: np.ndarray) -> np.ndarray:
    """Linear RGB, 0 to 1, of sRGB, 0 to 255."""
    parts = np.asarray(colours, float) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _oklab(light: np.ndarray) -> np.ndarray:
    return np.cbrt(light @ np.array(_CONES).T) @ np.array(_OKLAB).T
