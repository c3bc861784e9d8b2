r"""A Gabor position from a learned table, without images (Gabor position encoding, section 3).

The paper trains eq. 9 inside a frozen network. Here every channel's map is approximated directly, by least squares.
Eq. 9 is a function of x plus a function of y, and on a full grid least squares then falls into independent parts: the
means of the columns are fitted by :math:`g_x` with the left and right markers, the means of the rows by :math:`g_y`
with the top and bottom markers, and what is neither (the interaction of both) no choice of parameters can reach. So
each channel has, besides its :math:`R^2`, a ceiling: the :math:`R^2` that *any* sum of a function of x and one of y can
have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmlape.analysis.choices import VARIANTS
from mmlape.checks import check_grid, check_option, check_positive_int
from mmlape.position import GaborPosition
from mmlape.position.fixed_embeddings import FLOOR

from .axis_fit import AxisFit, fit_axis

# Relative, of values that were stored as float32.
ROUNDING = 1e-6


@dataclass(frozen=True)
class Additive:
    """Maps taken apart into what depends on x alone, on y alone, and the rest.

    Attributes:
        mean: ``(C,)``.
        across: ``(C, W)``, means of columns less the mean.
        down: ``(C, H)``, means of rows less the mean.
        rest: ``(C,)``, sum of squares of what remains.
        total: ``(C,)``, sum of squares about the mean; 0 where it is no more than float32's rounding of the mean.
    """

    mean: np.ndarray
    across: np.ndarray
    down: np.ndarray
    rest: np.ndarray
    total: np.ndarray


def take_apart(maps: np.ndarray) -> Additive:
    """Take maps ``(C, H, W)`` apart."""
    maps = maps.astype(np.float64)
    mean = maps.mean(axis=(1, 2))
    centred = maps - mean[:, None, None]
    across, down = centred.mean(axis=1), centred.mean(axis=2)
    rest = np.square(centred - across[:, None, :] - down[:, :, None]).sum(axis=(1, 2))
    total = np.square(centred).sum(axis=(1, 2))
    rounding = np.square(ROUNDING * mean) * maps[0].size
    return Additive(mean, across, down, rest, np.where(total > rounding, total, 0.0))


@dataclass(frozen=True)
class GaborFit:
    """Eq. 9 fitted to maps of one table.

    Attributes:
        variant: ``'G+E'``, ``'G'`` or ``'E'``.
        x, y: The fits along both axes.
        bias: ``(C,)``.
        maps: ``(C, H, W)``, what was fitted.
        r2: ``(C,)``, 1 - squared error / squared deviation from the channel's mean; 1 for a constant channel, which
            the bias meets exactly.
        ceiling: ``(C,)``, the R^2 that no sum of a function of x and one of y can exceed.
        total_r2: R^2 of all channels together, so of the values and not of the channels.
    """

    variant: str
    x: AxisFit
    y: AxisFit
    bias: np.ndarray
    maps: np.ndarray
    r2: np.ndarray
    ceiling: np.ndarray
    total_r2: float


def fit_maps(maps: np.ndarray, variant: str = 'G+E') -> GaborFit:
    """Fit maps ``(C, H, W)``, one per channel.

    Args:
        maps: At least one map.
        variant: Which parts of eq. 9: ``'G+E'`` (default), ``'G'`` or ``'E'``.

    Raises:
        ValueError: If the variant is unknown, ``maps`` has another shape, or a value is not finite.
    """
    gabor, edges = VARIANTS[check_option('variant', variant, VARIANTS)]
    maps = np.asarray(maps)
    if maps.ndim != 3 or not maps.size:
        raise ValueError(f'maps must be (channels, height, width), got the shape {maps.shape}')
    if not np.isfinite(maps).all():
        raise ValueError('maps must be finite, there is a NaN or an infinity in them')
    parts = take_apart(maps)
    x, y = (fit_axis(profiles, gabor, edges) for profiles in (parts.across, parts.down))
    bias = parts.mean + x.constant + y.constant
    fitted = parts.mean[:, None, None] + x.values[:, None, :] + y.values[:, :, None]
    error = np.square(maps - fitted).sum(axis=(1, 2))
    return GaborFit(
        variant=variant,
        x=x,
        y=y,
        bias=bias,
        maps=fitted,
        r2=_r2(error, parts.total),
        ceiling=_r2(parts.rest, parts.total),
        total_r2=float(_r2(error.sum(), parts.total.sum())),
    )


def fit_gabor_position(
    table: Tensor, grid: int | tuple[int, int], num_prefix_tokens: int = 0, variant: str = 'G+E'
) -> tuple[GaborPosition, list[GaborFit]]:
    """A Gabor position that approximates a learned table.

    Args:
        table: ``(K, P + H * W, C)``, or without K.
        grid: ``(H, W)``.
        num_prefix_tokens: Rows ``P`` of prefix tokens that come first; they are taken over as they are. Default 0.
        variant: See :func:`fit_maps`.

    Returns:
        The position, and the fit of each table.

    Raises:
        ValueError: If ``table`` has not ``P + H * W`` rows, or as :func:`fit_maps`.
    """
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
    with torch.no_grad():
        _fill(position, fits)
        position.prefix.copy_(table[:, :num_prefix_tokens])
    return position, fits


def _fill(position: GaborPosition, fits: list[GaborFit]) -> None:
    if position.bias is not None:
        position.bias.copy_(_stacked([fit.bias for fit in fits]))
    for gabor, axis in ((position.gabor_x, 'x'), (position.gabor_y, 'y')):
        if gabor is not None:
            found = [getattr(fit, axis) for fit in fits]
            gabor.raw_width.copy_(_raw([fit.width for fit in found]))
            gabor.raw_wavelength.copy_(_raw([fit.wavelength for fit in found]))
            gabor.phase.copy_(_stacked([fit.phase for fit in found]))
            gabor.weight.copy_(_stacked([fit.weight for fit in found]))
    if position.edges is not None:
        edges = [np.concatenate([fit.x.edges, fit.y.edges]) for fit in fits]
        position.edges.copy_(torch.from_numpy(np.stack(edges)))


def _stacked(values: list[np.ndarray]) -> Tensor:
    """``(C,)`` of each table to ``(K, 1, C)``."""
    return torch.from_numpy(np.stack(values))[:, None]


def _raw(values: list[np.ndarray]) -> Tensor:
    """The parameter whose softplus above the floor is the value."""
    above = (_stacked(values) - FLOOR).clamp(min=1e-6)
    return above + torch.log(-torch.expm1(-above))


def _r2(error: np.ndarray, total: np.ndarray) -> np.ndarray:
    return np.where(total > 0, 1 - error / np.where(total > 0, total, 1.0), 1.0)
