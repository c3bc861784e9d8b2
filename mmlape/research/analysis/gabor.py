"""A Gabor position from a learned table, without images, and the kinds of the table's channels (Gabor position
encoding, section 3). docs/pictures.md says how they are fitted and told apart.

Eq. 9 is a function of x plus a function of y. On a full grid, least squares then falls into two fits: of the means of
the columns, with the left and right markers, and of the means of the rows, with the top and bottom markers."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from mmlape.checks import check_grid, check_option, check_positive_int
from mmlape.position import GaborPosition
from mmlape.position.fixed_embeddings import FLOOR

from . import VARIANTS

KINDS = ('chaos', 'raster', 'striped', 'box')
PATTERN = 0.3
ONE_AXIS = 0.8
# On shorter axes a Gabor function passes through any few points, edge markers included.
MIN_SIDE = 8
# Relative, of values that were stored as float32.
ROUNDING = 1e-6
# Keeps weights small where the wave's cosine and sine are nearly the same; in units of a wave's squared length.
RIDGE = 1e-6
MAX_WIDTH, MAX_WAVELENGTH = 4.0, 8.0
# Widths and wavelengths that are tried for every profile, and the most that are tried from the best of them.
COARSE = (48, 96)
EVALUATIONS = 90


class AxisFit(NamedTuple):
    """``weight * exp(-t^2 / 2 width^2) * cos(2 pi t / wavelength + phase) + edges + constant`` for every profile."""

    width: np.ndarray  #: ``(C,)``, in units of half the image.
    wavelength: np.ndarray  #: ``(C,)``, in units of half the image.
    phase: np.ndarray  #: ``(C,)``, in radians.
    weight: np.ndarray  #: ``(C,)``.
    edges: np.ndarray  #: ``(2, C)``, what is added at the first and at the last place.
    constant: np.ndarray  #: ``(C,)``.
    values: np.ndarray  #: ``(C, n)``, the fitted profiles.


def fit_axis(profiles: np.ndarray, gabor: bool = True, edges: bool = True) -> AxisFit:
    """Least-squares fit of one Gabor function and two edge markers to profiles along one axis.

    Edge markers meet the first and the last place whatever the wave is, so the wave is fitted to the places between.
    For a given width and wavelength the model is linear in everything else, so only these two are searched (variable
    projection), from half a place and two places (the shortest wave that n places can show) to waves far longer than
    the image: ``scipy.optimize.least_squares`` goes on from the best place of a grid, the same every time.

    Args:
        profiles: ``(C, n)``, at n equidistant coordinates from -1 to 1.
        gabor: Fit a Gabor function. Default True.
        edges: Fit edge markers. Default True."""
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
    width, wavelength = places.T
    phase, weight = np.arctan2(-sine, cosine), np.hypot(cosine, sine)
    return AxisFit(width, wavelength, phase, weight, markers.T, constant, values)


def _search(profiles: np.ndarray, t: np.ndarray, step: float) -> np.ndarray:
    """Width and wavelength ``(C, 2)`` of the best fit to centred profiles ``(C, m)`` at ``t`` ``(m,)``."""
    low = np.log([min(step / 2, 1.0), min(2 * step, 2.0)])
    high = np.log([MAX_WIDTH, MAX_WAVELENGTH])
    shares = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in COARSE), indexing='ij'), axis=-1)
    shares = shares.reshape(-1, 2)
    coarse = _centred(_waves(np.exp(low + (high - low) * shares), t))
    damping = math.sqrt(RIDGE * len(t))

    def place(angles: np.ndarray) -> np.ndarray:
        return np.exp(low + (high - low) * np.square(np.sin(angles)))  # the search knows no bounds

    def residuals(angles: np.ndarray, profile: np.ndarray) -> np.ndarray:
        waves = _centred(_waves(place(angles)[None], t))
        weights = _solve(waves, profile[None])[0]
        return np.concatenate([waves[0] @ weights - profile, damping * weights])

    found = []
    for profile in profiles:
        fitted = (coarse @ _solve(coarse, profile[None])[..., None])[..., 0]
        best = shares[np.square(fitted - profile).sum(axis=1).argmin()]
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


def _solve(waves: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Weights ``(C, 2)`` of the ridge regression of ``target`` ``(C, m)`` on ``waves`` ``(C, m, 2)``."""
    transposed = waves.swapaxes(1, 2)
    gram = transposed @ waves + RIDGE * waves.shape[1] * np.eye(2)
    return np.linalg.solve(gram, transposed @ target[..., None])[..., 0]


def split_axes(maps: np.ndarray) -> tuple[np.ndarray, ...]:
    """Maps ``(C, H, W)`` as the mean ``(C,)``, what depends on x ``(C, W)`` and on y ``(C, H)`` alone, and sums of
    squares ``(C,)``: of the rest, and of all about the mean, which is 0 where it is only float32's rounding."""
    maps = maps.astype(np.float64)
    mean = maps.mean(axis=(1, 2))
    centred = maps - mean[:, None, None]
    across, down = centred.mean(axis=1), centred.mean(axis=2)
    rest = np.square(centred - across[:, None, :] - down[:, :, None]).sum(axis=(1, 2))
    total = np.square(centred).sum(axis=(1, 2))
    rounding = np.square(ROUNDING * mean) * maps[0].size
    return mean, across, down, rest, np.where(total > rounding, total, 0.0)


class GaborFit(NamedTuple):
    """Eq. 9 fitted to maps of one table."""

    variant: str  #: ``'G+E'``, ``'G'`` or ``'E'``.
    x: AxisFit  #: Across the image.
    y: AxisFit  #: Down the image.
    bias: np.ndarray  #: ``(C,)``.
    maps: np.ndarray  #: ``(C, H, W)``, what was fitted.
    #: ``(C,)``, 1 - squared error / squared deviation from the mean; 1 for a constant channel.
    r2: np.ndarray
    #: ``(C,)``, the R^2 that no sum of a function of x and one of y can exceed.
    ceiling: np.ndarray
    total_r2: float  #: R^2 of all values together.


def fit_maps(maps: np.ndarray, variant: str = 'G+E') -> GaborFit:
    """Fit maps ``(C, H, W)``, one per channel.

    Args:
        maps: At least one map.
        variant: Which parts of eq. 9: ``'G+E'`` (default), ``'G'`` or ``'E'``.

    Raises ValueError if the variant is unknown, ``maps`` has another shape, or a value is not finite."""
    gabor, edges = VARIANTS[check_option('variant', variant, VARIANTS)]
    maps = np.asarray(maps)
    if maps.ndim != 3 or not maps.size:
        raise ValueError(f'maps must be (channels, height, width), got the shape {maps.shape}')
    if not np.isfinite(maps).all():
        raise ValueError('maps must be finite, there is a NaN or an infinity in them')
    mean, across, down, rest, total = split_axes(maps)
    x, y = fit_axis(across, gabor, edges), fit_axis(down, gabor, edges)
    bias = mean + x.constant + y.constant
    fitted = mean[:, None, None] + x.values[:, None, :] + y.values[:, :, None]
    error = np.square(maps - fitted).sum(axis=(1, 2))
    r2, ceiling = (1 - _ratio(part, total, otherwise=0.0) for part in (error, rest))
    total_r2 = float(1 - _ratio(error.sum(), total.sum(), otherwise=0.0))
    return GaborFit(variant, x, y, bias, fitted, r2, ceiling, total_r2)


def fit_gabor_position(
    table: Tensor, grid: int | tuple[int, int], num_prefix_tokens: int = 0, variant: str = 'G+E'
) -> tuple[GaborPosition, list[GaborFit]]:
    """A Gabor position that approximates a learned table, and the fit of each table.

    Args:
        table: ``(K, P + H * W, C)``, or without K.
        grid: ``(H, W)``.
        num_prefix_tokens: Rows ``P`` of prefix tokens that come first; they are taken over as they are. Default 0.
        variant: See :func:`fit_maps`.

    Raises ValueError if ``table`` has not ``P + H * W`` rows, or as :func:`fit_maps`."""
    grid = check_grid('grid', grid)
    check_positive_int('num_prefix_tokens', num_prefix_tokens, minimum=0)
    table = table.detach().cpu().float()
    table = table[None] if table.ndim == 2 else table
    rows = num_prefix_tokens + grid[0] * grid[1]
    if table.ndim != 3 or table.shape[1] != rows:
        raise ValueError(
            f'table must have {num_prefix_tokens} + {grid[0]} x {grid[1]} = {rows} rows, '
            f'got the shape {tuple(table.shape)}'
        )
    cells = table[:, num_prefix_tokens:].transpose(1, 2).unflatten(2, grid).numpy()
    fits = [fit_maps(maps, variant) for maps in cells]
    position = GaborPosition(table.shape[2], grid, num_prefix_tokens, len(table), variant)
    fitted = [_parameters_of(fit) for fit in fits]
    state = {name: torch.stack([each[name] for each in fitted]) for name in fitted[0]}
    state['prefix'] = table[:, :num_prefix_tokens]
    position.load_state_dict({name: state[name] for name in position.state_dict()})
    return position, fits


def _parameters_of(fit: GaborFit) -> dict[str, Tensor]:
    """Parameters of a Gabor position by name, without its tables' axis: ``(4, C)`` edges, ``(1, C)`` others."""
    edges, bias = np.concatenate([fit.x.edges, fit.y.edges]), fit.bias[None]
    found = {'edges': torch.from_numpy(edges), 'bias': torch.from_numpy(bias)}
    for side, axis in (('gabor_x', fit.x), ('gabor_y', fit.y)):
        for name in ('width', 'wavelength', 'phase', 'weight'):
            values = torch.from_numpy(getattr(axis, name))[None]
            if name in ('width', 'wavelength'):
                # The parameter whose softplus above the floor is the value.
                name, above = f'raw_{name}', (values - FLOOR).clamp(min=1e-6)
                values = above + torch.log(-torch.expm1(-above))  # overflows for no width
            found[f'{side}.{name}'] = values
    return found


class ChannelKinds(NamedTuple):
    """Kinds of channels, and the figures that decide them."""

    kinds: np.ndarray  #: ``(C,)``, one of ``'chaos'``, ``'raster'``, ``'striped'``, ``'box'``.
    pattern: np.ndarray  #: ``(C,)``, adjusted R^2 of a function of x plus a function of y.
    edges: np.ndarray  #: ``(C,)``, what edge markers alone explain of these two, 0 to 1.
    gabor: np.ndarray  #: ``(C,)``, what Gabor functions alone explain of them, 0 to 1.
    one_axis: np.ndarray  #: ``(C,)``, the larger one's share of their variance, 0.5 to 1.

    def counts(self) -> dict[str, int]:
        """Number of channels of each kind."""
        return {kind: int((self.kinds == kind).sum()) for kind in KINDS}


def classify_channels(maps: np.ndarray) -> ChannelKinds:
    """Classify maps ``(C, H, W)``, one per channel; a constant channel has no pattern: chaos.

    Raises ValueError if a side of the grid is under 8 cells, where edges and waves cannot be told apart."""
    if maps.ndim != 3 or min(maps.shape[1:]) < MIN_SIDE:
        raise ValueError(
            f'maps must be (channels, height, width) with sides of at least {MIN_SIDE} cells, '
            f'got the shape {maps.shape}'
        )
    _, across, down, rest, total = split_axes(maps)
    height, width = maps.shape[1:]
    along_x = height * np.square(across).sum(axis=1)
    along_y = width * np.square(down).sum(axis=1)
    noise = rest / ((height - 1) * (width - 1))
    pattern = 1 - _ratio(noise, total / (height * width - 1), otherwise=1.0)

    def explained(gabor: bool) -> np.ndarray:
        """Share of the two functions' sum of squares that Gabor functions or edge markers explain."""
        error = np.zeros_like(along_x)
        for profiles, repeats in ((across, height), (down, width)):
            fitted = fit_axis(profiles, gabor, edges=not gabor).values
            error = error + repeats * np.square(profiles - fitted).sum(axis=1)
        return 1 - _ratio(error, along_x + along_y, otherwise=1.0)

    edges, gabor = explained(gabor=False), explained(gabor=True)
    cleaned_x = np.maximum(along_x - (width - 1) * noise, 0)
    cleaned_y = np.maximum(along_y - (height - 1) * noise, 0)
    one_axis = _ratio(np.maximum(cleaned_x, cleaned_y), cleaned_x + cleaned_y, otherwise=1.0)
    questions = [pattern < PATTERN, edges > gabor, one_axis >= ONE_AXIS]
    kinds = np.select(questions, ['chaos', 'box', 'striped'], 'raster')
    return ChannelKinds(kinds, pattern, edges, gabor, one_axis)


def _ratio(part: np.ndarray, whole: np.ndarray, otherwise: float) -> np.ndarray:
    return np.divide(part, whole, out=np.full_like(whole, otherwise), where=whole > 0)
