"""Least-squares fit of one Gabor function and two edge markers to profiles along one axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

# Keeps weights small where two columns of the fit are nearly the same; in units of a column's squared length.
RIDGE = 1e-6
MAX_WIDTH, MAX_WAVELENGTH = 4.0, 8.0
# The search: a coarse grid over width and wavelength, then ever finer ones around the best places.
COARSE = (24, 48)
STARTS, ROUNDS, SIDE, SHRINK = 4, 14, 5, 0.6
# Values held at a time.
CHUNK = 4_000_000


@dataclass(frozen=True)
class AxisFit:
    """``weight * exp(-t^2 / 2 width^2) * cos(2 pi t / wavelength + phase) + edges + constant`` for every profile.

    Attributes:
        width, wavelength, phase, weight: ``(C,)`` each, in units of half the image (phase in radians).
        edges: ``(2, C)``, what is added at the first and at the last place.
        constant: ``(C,)``.
        values: ``(C, n)``, the fitted profiles.
    """

    width: np.ndarray
    wavelength: np.ndarray
    phase: np.ndarray
    weight: np.ndarray
    edges: np.ndarray
    constant: np.ndarray
    values: np.ndarray


def fit_axis(profiles: np.ndarray, gabor: bool = True, edges: bool = True) -> AxisFit:
    """Fit profiles ``(C, n)`` at n equidistant coordinates from -1 to 1.

    For a given width and wavelength the model is linear in everything else, so only these two are searched: over a
    grid from half a place and two places (the shortest wave that n places can show) to waves far longer than the
    image, then around the best four places of it, ever finer. The result is the same every time.

    Args:
        profiles: ``(C, n)``.
        gabor: Fit a Gabor function. Default True.
        edges: Fit edge markers. Default True.
    """
    profiles = profiles.astype(np.float64)
    count, length = profiles.shape
    width, wavelength = np.ones(count), np.ones(count)
    if gabor and length > 1:
        width, wavelength = _search(profiles - profiles.mean(axis=1, keepdims=True), edges)
    columns = _columns(width, wavelength, length, gabor, edges)
    means = columns.mean(axis=1, keepdims=True)
    weights = _solve(columns - means, profiles - profiles.mean(axis=1, keepdims=True))
    values = (columns * weights[:, None]).sum(axis=2)
    constant = profiles.mean(axis=1) - values.mean(axis=1)
    cosine, sine = (weights[:, 0], weights[:, 1]) if gabor else (np.zeros(count), np.zeros(count))
    return AxisFit(
        width=width,
        wavelength=wavelength,
        phase=np.arctan2(-sine, cosine),
        weight=np.hypot(cosine, sine),
        edges=weights[:, -2:].T if edges else np.zeros((2, count)),
        constant=constant,
        values=values + constant[:, None],
    )


def _search(profiles: np.ndarray, edges: bool) -> tuple[np.ndarray, np.ndarray]:
    """Width and wavelength ``(C,)`` of the best fit to centred profiles."""
    length = profiles.shape[1]
    step = 2 / (length - 1)
    low = np.log([min(step / 2, 1.0), min(2 * step, 2.0)])
    high = np.log([MAX_WIDTH, MAX_WAVELENGTH])
    axes = [np.linspace(*ends, count) for *ends, count in zip(low, high, COARSE)]
    coarse = np.stack(np.meshgrid(*axes, indexing='ij'), axis=-1).reshape(-1, 2)
    errors = np.concatenate(
        [
            _errors(profiles, np.broadcast_to(part, (len(profiles), *part.shape)), edges)
            for part in _chunks(coarse, profiles.size * 6)
        ],
        axis=1,
    )
    best = np.argsort(errors, axis=1, kind='stable')[:, :STARTS]
    places = coarse[best].reshape(-1, 2)
    repeated = profiles.repeat(STARTS, axis=0)
    spacing = (high - low) / (np.array(COARSE) - 1)
    offsets = np.stack(np.meshgrid(*[np.linspace(-1, 1, SIDE)] * 2, indexing='ij'), axis=-1)
    for _ in range(ROUNDS):
        near = places[:, None] + offsets.reshape(-1, 2) * spacing
        near = np.clip(near, low, high)
        errors = np.concatenate(
            [
                _errors(some, around, edges)
                for some, around in zip(
                    _chunks(repeated, length * SIDE**2 * 6), _chunks(near, length * SIDE**2 * 6)
                )
            ]
        )
        places = near[np.arange(len(near)), errors.argmin(axis=1)]
        spacing = spacing * SHRINK
    errors = _errors(repeated, places[:, None], edges).reshape(-1, STARTS)
    chosen = places.reshape(-1, STARTS, 2)[np.arange(len(profiles)), errors.argmin(axis=1)]
    width, wavelength = np.exp(chosen).T
    return width, wavelength


def _errors(profiles: np.ndarray, places: np.ndarray, edges: bool) -> np.ndarray:
    """Squared error ``(C, m)`` of the best linear fit at each (log width, log wavelength), ``places`` ``(C, m, 2)``."""
    count, candidates, _ = places.shape
    length = profiles.shape[1]
    if (
        places.strides[0] == 0
    ):  # the same places for all profiles: their columns need not be made again
        columns = _columns(*np.exp(places[0]).T, length, True, edges)[None]
    else:
        columns = _columns(*np.exp(places.reshape(-1, 2)).T, length, True, edges)
        columns = columns.reshape(count, candidates, length, -1)
    columns = columns - columns.mean(axis=2, keepdims=True)
    target = np.broadcast_to(profiles[:, None], (count, candidates, length))
    fitted = (columns * _solve(columns, target)[..., None, :]).sum(axis=-1)
    return np.square(target - fitted).sum(axis=-1)


def _columns(
    width: np.ndarray, wavelength: np.ndarray, length: int, gabor: bool, edges: bool
) -> np.ndarray:
    """What is weighted and summed, ``(C, n, columns)``: the wave's cosine and sine, the first and the last place."""
    parts = []
    if gabor:
        t = np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
        envelope = np.exp(-0.5 * np.square(t / width[:, None]))
        angle = 2 * math.pi * t / wavelength[:, None]
        parts += [envelope * np.cos(angle), envelope * np.sin(angle)]
    if edges:
        places = np.eye(length)[[0, -1]]
        parts += [np.broadcast_to(place, (len(width), length)) for place in places]
    return np.stack(parts, axis=-1)


def _solve(columns: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Weights ``(..., k)`` of the ridge regression of ``target`` ``(..., n)`` on ``columns`` ``(..., n, k)``."""
    transposed = columns.swapaxes(-1, -2)
    gram = transposed @ columns + RIDGE * columns.shape[-2] * np.eye(columns.shape[-1])
    # The inverse is shared by all targets where the columns are.
    moments = transposed @ target[..., None]
    return (np.linalg.inv(gram) @ moments)[..., 0]


def _chunks(items: np.ndarray, values_per_item: int) -> list[np.ndarray]:
    size = max(CHUNK // max(values_per_item, 1), 1)
    return [items[start : start + size] for start in range(0, len(items), size)]
