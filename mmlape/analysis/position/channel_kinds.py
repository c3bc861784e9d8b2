"""The four kinds of channels of a learned table (Gabor position encoding, section 3.1), told apart by a stated rule.

The paper tells them apart by eye. Here a channel's map is split into a function of x, a function of y and the rest, as
in :mod:`~mmlape.analysis.position.gabor_fit`, and asked three questions in turn:

1. Is there a pattern? The share of the variance that the two functions explain, corrected for what they would explain
   of noise (the adjusted R^2), is at least ``PATTERN``. If not: **chaos**. Oblique waves, and anything else that is no
   sum of a function of x and one of y, count as chaos too; the paper finds hardly any.
2. Is it about the boundary? Markers of the four edges alone explain more of the two functions than Gabor functions
   alone do. If so: **box**.
3. Does it vary mainly along one axis? One of the two functions holds at least ``ONE_AXIS`` of their common variance
   (each less what noise would put into it). If so: **striped**; if not: **raster**.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .axis_fit import fit_axis
from .gabor_fit import Additive, take_apart

KINDS = ('chaos', 'raster', 'striped', 'box')
PATTERN = 0.3
ONE_AXIS = 0.8
# On shorter axes a Gabor function passes through any few points, edge markers included.
MIN_SIDE = 8


@dataclass(frozen=True)
class ChannelKinds:
    """What each channel is, and why.

    Attributes:
        kinds: ``(C,)``, one of ``'chaos'``, ``'raster'``, ``'striped'``, ``'box'``.
        pattern: ``(C,)``, adjusted R^2 of a function of x plus a function of y.
        edges, gabor: ``(C,)``, what edge markers alone and Gabor functions alone explain of these two, 0 to 1.
        one_axis: ``(C,)``, the larger one's share of their variance, 0.5 to 1.
    """

    kinds: np.ndarray
    pattern: np.ndarray
    edges: np.ndarray
    gabor: np.ndarray
    one_axis: np.ndarray

    def counts(self) -> dict[str, int]:
        """Number of channels of each kind."""
        return {kind: int((self.kinds == kind).sum()) for kind in KINDS}


def classify_channels(maps: np.ndarray) -> ChannelKinds:
    """Classify maps ``(C, H, W)``, one per channel.

    A constant channel has no pattern: chaos.

    Raises:
        ValueError: If a side of the grid is under 8 cells, where edges and waves cannot be told apart.
    """
    if maps.ndim != 3 or min(maps.shape[1:]) < MIN_SIDE:
        raise ValueError(
            f'maps must be (channels, height, width) with sides of at least {MIN_SIDE} cells, '
            f'got the shape {maps.shape}'
        )
    parts = take_apart(maps)
    height, width = maps.shape[1:]
    along_x = height * np.square(parts.across).sum(axis=1)
    along_y = width * np.square(parts.down).sum(axis=1)
    noise = parts.rest / ((height - 1) * (width - 1))
    variance = parts.total / (height * width - 1)
    pattern = 1 - _ratio(noise, variance, otherwise=1.0)
    edges, gabor = (
        _explained(parts, along_x + along_y, gabor=with_gabor, edges=not with_gabor)
        for with_gabor in (False, True)
    )
    cleaned_x = np.maximum(along_x - (width - 1) * noise, 0)
    cleaned_y = np.maximum(along_y - (height - 1) * noise, 0)
    one_axis = _ratio(np.maximum(cleaned_x, cleaned_y), cleaned_x + cleaned_y, otherwise=1.0)
    questions = [pattern < PATTERN, edges > gabor, one_axis >= ONE_AXIS]
    kinds = np.select(questions, ['chaos', 'box', 'striped'], 'raster')
    return ChannelKinds(kinds, pattern, edges, gabor, one_axis)


def _explained(parts: Additive, total: np.ndarray, gabor: bool, edges: bool) -> np.ndarray:
    """Share of the two functions' sum of squares that a model of both axes explains."""
    error = np.zeros_like(total)
    for profiles, across_the_axis in (
        (parts.across, parts.down.shape[1]),
        (parts.down, parts.across.shape[1]),
    ):
        fitted = fit_axis(profiles, gabor, edges).values
        error = error + across_the_axis * np.square(profiles - fitted).sum(axis=1)
    return 1 - _ratio(error, total, otherwise=1.0)


def _ratio(part: np.ndarray, whole: np.ndarray, otherwise: float) -> np.ndarray:
    return np.divide(part, whole, out=np.full_like(whole, otherwise), where=whole > 0)
