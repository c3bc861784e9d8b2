"""Least-squares fit of one Gabor function and two edge markers to profiles along one axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

# Keeps weights small where the wave's cosine and sine are nearly the same; in units of a wave's squared length.
RIDGE = 1e-6
MAX_WIDTH, MAX_WAVELENGTH = 4.0, 8.0
# Widths and wavelengths that are tried for every profile, and the most that are tried from the best of them.
COARSE = (48, 96)
EVALUATIONS = 90


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

    Edge markers meet the first and the last place whatever the wave is, so the wave is fitted to the places between.
    For a given width and wavelength the model is linear in everything else, so only these two are searched (variable
    projection), from half a place and two places (the shortest wave that n places can show) to waves far longer than
    the image: ``scipy.optimize.least_squares`` goes on from the best place of a grid. The result is the same every
    time.

    Args:
        profiles: ``(C, n)``.
        gabor: Fit a Gabor function. Default True.
        edges: Fit edge markers. Default True.
    """
    profiles = profiles.astype(np.float64)
    count, length = profiles.shape
    t = np.linspace(-1, 1, length) if length > 1 else np.zeros(1)
    inner = slice(1, -1) if edges and length > 2 else slice(None)
    constant = profiles[:, inner].mean(axis=1)
    places, weights, values = np.ones((count, 2)), np.zeros((count, 2)), np.zeros((count, length))
    if gabor and length > 1:
        centred = profiles[:, inner] - constant[:, None]
        places = _search(centred, t[inner], step=2 / (length - 1))
        waves = _waves(places, t)
        weights = _solve(_centred(waves[:, inner]), centred)
        values = (waves @ weights[..., None])[..., 0]
        constant -= values[:, inner].mean(axis=1)
    values += constant[:, None]
    markers = np.zeros((count, 2))
    if edges:
        markers = (profiles - values)[:, [0, -1]]
        values[:, [0, -1]] = profiles[:, [0, -1]]
    cosine, sine = weights.T
    return AxisFit(
        width=places[:, 0],
        wavelength=places[:, 1],
        phase=np.arctan2(-sine, cosine),
        weight=np.hypot(cosine, sine),
        edges=markers.T,
        constant=constant,
        values=values,
    )


def _search(profiles: np.ndarray, t: np.ndarray, step: float) -> np.ndarray:
    """Width and wavelength ``(C, 2)`` of the best fit to centred profiles ``(C, m)`` at ``t`` ``(m,)``."""
    low = np.log([min(step / 2, 1.0), min(2 * step, 2.0)])
    high = np.log([MAX_WIDTH, MAX_WAVELENGTH])
    shares = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in COARSE), indexing='ij'), axis=-1)
    shares = shares.reshape(-1, 2)
    waves = _centred(_waves(np.exp(low + (high - low) * shares), t))
    # Orthonormal but for the ridge: the squares of what a profile has of them is what the fit takes off its error.
    basis = waves @ np.linalg.cholesky(np.linalg.inv(_gram(waves)))
    damping = math.sqrt(RIDGE * len(t))

    def place(angles: np.ndarray) -> np.ndarray:
        return np.exp(low + (high - low) * np.square(np.sin(angles)))  # the search knows no bounds

    def residuals(angles: np.ndarray, profile: np.ndarray) -> np.ndarray:
        waves = _centred(_waves(place(angles)[None], t))
        weights = _solve(waves, profile[None])[0]
        return np.concatenate([waves[0] @ weights - profile, damping * weights])

    found = []
    for profile in profiles:
        best = shares[np.square(profile @ basis).sum(axis=1).argmax()]
        start = np.arcsin(np.sqrt(best.clip(0.01, 0.99)))
        fit = least_squares(residuals, start, method='lm', max_nfev=EVALUATIONS, args=(profile,))
        found.append(place(fit.x))
    return np.stack(found)


def _waves(places: np.ndarray, t: np.ndarray) -> np.ndarray:
    """Cosine and sine of each (width, wavelength) ``(C, 2)`` at ``t`` ``(m,)``, under their envelope: ``(C, m, 2)``."""
    width, wavelength = places[:, :1], places[:, 1:]
    waves = np.exp(-0.5 * np.square(t / width) + 2j * math.pi * t / wavelength)
    return np.stack([waves.real, waves.imag], axis=-1)


def _centred(waves: np.ndarray) -> np.ndarray:
    return waves - waves.mean(axis=1, keepdims=True)


def _gram(waves: np.ndarray) -> np.ndarray:
    return waves.swapaxes(1, 2) @ waves + RIDGE * waves.shape[1] * np.eye(2)


def _solve(waves: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Weights ``(C, 2)`` of the ridge regression of ``target`` ``(C, m)`` on ``waves`` ``(C, m, 2)``."""
    return np.linalg.solve(_gram(waves), waves.swapaxes(1, 2) @ target[..., None])[..., 0]
