"""DTN's positional maps ``P_h`` (ICLR 2022, eq. 6): where a token takes its inter-token statistics from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmlape.analysis.choices import NORMS
from mmlape.analysis.position.correlation import centre_of, token_row
from mmlape.analysis.stages import Stage, dtn_places
from mmlape.checks import check_grid
from mmlape.layout import Grid
from mmlape.norm import DTN

# The grid of the paper's figures, where no position embedding tells another.
DEFAULT_GRID = (14, 14)


@dataclass(frozen=True)
class LayerMaps:
    """One token's row of the maps of one DTN.

    Attributes:
        name: ``'layer 0 norm1'``, ...
        pool: Tokens per side of a cell.
        cell: ``(row, column)`` of the cell that the token lies in; the token's own place where ``pool`` is 1.
        maps: ``(G, A, E)`` over ``A x E`` cells, G = 1 where all heads have the same; every map sums to one.
    """

    name: str
    pool: int
    cell: tuple[int, int]
    maps: np.ndarray


@dataclass(frozen=True)
class PositionMaps:
    """The maps of a stage.

    Attributes:
        stage: Its name.
        grid: ``(H, W)`` in tokens.
        token: ``(row, column)`` of the token whose row is shown.
        layers: One entry per DTN.
    """

    stage: str
    grid: Grid
    token: tuple[int, int]
    layers: tuple[LayerMaps, ...]

    def arrays(self, suffix: str = '') -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``: ``maps_layer0_norm1<suffix>``, ..., ``cell_...``, ``grid``, ``token``."""
        named = {layer.name.replace(' ', '', 1).replace(' ', '_'): layer for layer in self.layers}
        return {
            'stage': np.asarray(self.stage),
            'grid': np.asarray(self.grid),
            'token': np.asarray(self.token),
            **{f'maps_{name}{suffix}': layer.maps for name, layer in named.items()},
            **{f'cell_{name}': np.asarray(layer.cell) for name, layer in named.items()},
        }


def dtn_maps(
    stage: Stage,
    grid: Grid | None = None,
    token: Sequence[int] | None = None,
    layers: int | Sequence[int] | None = None,
    norms: Sequence[str] = NORMS,
) -> PositionMaps:
    """One token's row of ``P_h``, for every head of every DTN of a stage, as 2-D maps (ICLR 2022, Figures 6 and 7).

    Args:
        stage: From :func:`~mmlape.analysis.dtn_stages`.
        grid: ``(H, W)`` in tokens. Default None: that of the position embedding of the stage, else 14 x 14.
        token: ``(row, column)``. Default None: the centre. Prefix tokens take no part in the maps.
        layers: 0-based, see :func:`~mmlape.analysis.dtn_places`. Default None: all with DTN.
        norms: ``'norm1'``, ``'norm2'`` or both (default).

    Raises:
        ValueError: If the grid, the token or a layer does not exist, or a layer has no DTN.
        TypeError: If ``token`` is no pair.
    """
    if grid is None:
        grid = DEFAULT_GRID if stage.position is None else stage.position.embedding.grid
    grid = check_grid('grid', grid)
    token = centre_of(grid) if token is None else token
    token = divmod(token_row(token, grid, 0), grid[1])
    places = dtn_places(stage, layers, norms)
    if not places:
        raise ValueError(f'no layer of {stage.name!r} has DTN as its {" or ".join(norms)}')
    found = tuple(
        _layer_maps(place.name, place.norm, grid, token)
        for place in places
        if isinstance(place.norm, DTN)
    )
    return PositionMaps(stage.name, grid, token, found)


def _layer_maps(name: str, norm: DTN, grid: Grid, token: tuple[int, int]) -> LayerMaps:
    row, column = (place // norm.pool for place in token)
    with torch.no_grad():
        down, across = norm.axis_maps(grid)
        maps = down[:, row, :, None] * across[:, column, None, :]
    return LayerMaps(name, norm.pool, (row, column), maps.cpu().float().numpy())
