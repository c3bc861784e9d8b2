r"""Position correlation per layer (LaPE, ICCV 2023, eq. 12): how alike the positions of two tokens look to a layer.

What is correlated is what position contributes to the input of a layer's attention:

* **LaPE** adds :math:`LN_{\omega,l}(\omega_l)` (eq. 9): it is taken from the plan as it is.
* **Default joining** hides it in the residual stream. By eq. 6,
  :math:`LN_l(\tilde x_l + \omega) = \lambda_1 LN_l(\tilde x_l) + \lambda_2 LN_l(\omega) + \lambda_3 \beta_l`, and
  :math:`\lambda_2 LN_l(\omega)` is shown. :math:`\lambda_2 = \sigma_\omega / \sigma_{\tilde x + \omega}` (eq. 7)
  depends on the image, but it is one positive number per token, and a cosine does not notice a positive factor on
  either side: the correlation is that of :math:`LN_l(\omega)`, for every image. Where :math:`\sigma_\omega = 0` (a
  token without position), :math:`\lambda_2 = 0`: there is no correlation (NaN).
* **Shared and unshared joining** add to the stream before every layer, and what was added stays there. So layer l reads
  the sum of all entries up to its own, and :math:`LN_l` of that sum is shown; for shared joining the sum is a multiple
  of :math:`\omega` and shows what :math:`\omega` shows.

With another token norm than LayerNorm that norm is applied in its place. For a norm with heads (DTN),
:math:`\lambda_2` is one number per token and head, of which the picture takes all as equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mmlape.analysis.choices import SOURCES
from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage, position_of
from mmlape.checks import check_grid, check_layers, check_option, check_positive_int
from mmlape.layout import Grid
from mmlape.position import PositionPlan

# A matrix of 8192 x 8192 correlations in float32 is 256 MiB.
MAX_TOKENS = 8192


@dataclass(frozen=True)
class LayerPosition:
    """What position contributes to one layer.

    Attributes:
        name: ``'embedding'`` for the embedding itself, before any layer; ``'layer 0'``, ...
        rows: ``(P + H * W, C)``, float64; a row of zeros is a token without position.
    """

    name: str
    rows: np.ndarray


def position_plan(stage: Stage, grid: Grid | None = None) -> PositionPlan:
    """The plan of a stage for ``grid = (H, W)``, by default the grid that it was built for; without gradients."""
    position = position_of(stage)
    with torch.no_grad():
        return position.joining(position.embedding(_grid_of(stage, grid)))


def plan_sources(plan: PositionPlan) -> tuple[str, ...]:
    """Where a plan puts position: ``'attention'`` (LaPE), ``'stream'`` (all others), or both (a warm start)."""
    used = {
        'attention': any(entry is not None for entry in plan.attention),
        'stream': plan.stem is not None or any(entry is not None for entry in plan.stream),
    }
    return tuple(source for source in SOURCES if used[source])


def layer_positions(
    stage: Stage,
    grid: Grid | None = None,
    source: str | None = None,
    layers: int | Sequence[int] | None = None,
) -> list[LayerPosition]:
    """What position contributes to the attention of each layer; see the head of this module for each joining method.

    Args:
        stage: From :func:`~mmlape.analysis.position_stages`.
        grid: ``(H, W)`` in tokens. Default None: the grid that the embedding was built for.
        source: ``'attention'`` or ``'stream'``, for a plan with both. Default None: what there is.
        layers: None (default) for all, a number of first layers, or a list of 0-based indices.

    Returns:
        The embedding itself where there is one for all layers, then each layer asked for that receives position.

    Raises:
        ValueError: If ``source`` is unknown, not in the plan, or left out where the plan has both; or ``layers`` is out
            of range, or none of them receives position.
    """
    grid = _grid_of(stage, grid)
    plan = position_plan(stage, grid)
    wanted = check_layers('layers', layers, len(stage.blocks))
    source = _pick_source(plan, source)
    rows = plan.attention if source == 'attention' else _in_stream(stage, plan, grid)
    found = [
        LayerPosition(f'layer {layer}', _to_numpy(entry))
        for layer in wanted
        if (entry := rows[layer]) is not None
    ]
    if not found:
        raise ValueError(f'none of the layers {list(wanted)} receives position')
    with torch.no_grad():
        embedding = position_of(stage).embedding(grid)
    if len(embedding) == 1:
        found.insert(0, LayerPosition('embedding', _to_numpy(embedding)))
    return found


def cosine_matrix(rows: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """Cosine similarity of every row with every other (eq. 12).

    Args:
        rows: ``(N, C)``.
        others: ``(M, C)``. Default None: the rows themselves.

    Returns:
        ``(N, M)``, float32; NaN where a row is zero, because it has no direction.

    Raises:
        ValueError: If more than 8192 x 8192 values would come out.
    """
    others = rows if others is None else others
    if len(rows) * len(others) > MAX_TOKENS**2:
        raise ValueError(
            f'the correlations of {len(rows)} x {len(others)} tokens do not fit in memory, the limit is '
            f'{MAX_TOKENS} x {MAX_TOKENS}: take a smaller grid'
        )
    units, other_units = _unit_rows(rows), _unit_rows(others)
    return np.clip(units @ other_units.T, -1, 1).astype(np.float32)


def token_row(token: int | Sequence[int], grid: Grid, num_prefix: int) -> int:
    """Row of a token in an embedding.

    Args:
        token: ``(row, column)`` of a cell, or the index of a prefix token.
        grid: ``(H, W)``.
        num_prefix: Prefix tokens ``P``.

    Raises:
        ValueError: If there is no such token.
        TypeError: If ``token`` is neither an integer nor a pair of them.
    """
    if isinstance(token, int):
        if not num_prefix:
            raise ValueError(
                f'token={token} names a prefix token, but there is none; a cell is (row, column)'
            )
        return check_positive_int('prefix token', token, minimum=0, maximum=num_prefix - 1)
    if not isinstance(token, Sequence) or len(token) != 2:
        raise TypeError(f'token must be a pair (row, column) or an integer, got {token!r}')
    row, column = (
        check_positive_int(f'{name} of the token', value, minimum=0, maximum=size - 1)
        for name, value, size in zip(('row', 'column'), token, grid)
    )
    return num_prefix + row * grid[1] + column


def correlation_map(
    rows: np.ndarray, token: int | Sequence[int], grid: Grid, num_prefix: int
) -> np.ndarray:
    """Correlation of one token with every cell, ``(H, W)``.

    Args:
        rows: ``(P + H * W, C)``.
        token: See :func:`token_row`.
        grid: ``(H, W)``.
        num_prefix: Prefix tokens ``P``.
    """
    chosen = token_row(token, grid, num_prefix)
    return cosine_matrix(rows[[chosen]], rows[num_prefix:]).reshape(grid)


def centre_of(grid: Grid) -> tuple[int, int]:
    """The cell in the middle, the lower right one of four."""
    return grid[0] // 2, grid[1] // 2


@dataclass(frozen=True)
class Correlations(Result):
    """Position correlations of a stage.

    Attributes:
        stage: Its name.
        source: ``'attention'`` or ``'stream'``.
        grid: ``(H, W)``.
        token: The chosen token, ``(row, column)`` or the index of a prefix token.
        num_prefix: Rows of prefix tokens that ``matrices`` begin with; 0 where they are left out.
        names: What each entry belongs to: ``'embedding'``, ``'layer 0'``, ...
        matrices: ``(n, N, N)`` with N = ``num_prefix`` + H * W.
        maps: ``(n, H, W)``, the chosen token's correlation with every cell.
    """

    stage: str
    source: str
    grid: Grid
    token: tuple[int, int] | int
    num_prefix: int
    names: tuple[str, ...]
    matrices: np.ndarray
    maps: np.ndarray


def position_correlations(
    stage: Stage,
    grid: Grid | None = None,
    token: int | Sequence[int] | None = None,
    with_prefix: bool = False,
    source: str | None = None,
    layers: int | Sequence[int] | None = None,
) -> Correlations:
    """Correlation matrices of all layers, and the row of one token as maps (LaPE, ICCV 2023, Figures 3 and 4).

    Args:
        stage: From :func:`~mmlape.analysis.position_stages`.
        grid: ``(H, W)`` in tokens. Default None: the grid that the embedding was built for.
        token: The token of the maps, ``(row, column)`` or the index of a prefix token. Default None: the centre.
        with_prefix: Keep prefix tokens in the matrices. Default False.
        source: See :func:`layer_positions`.
        layers: See :func:`layer_positions`.

    Raises:
        ValueError: As :func:`layer_positions`, :func:`token_row` and :func:`cosine_matrix`.
    """
    grid = _grid_of(stage, grid)
    token = centre_of(grid) if token is None else token
    num_prefix = position_of(stage).embedding.num_prefix_tokens
    token_row(token, grid, num_prefix)  # refused before anything is computed
    positions = layer_positions(stage, grid, source, layers)
    first = 0 if with_prefix else num_prefix
    matrices = [cosine_matrix(position.rows[first:]) for position in positions]
    maps = [correlation_map(position.rows, token, grid, num_prefix) for position in positions]
    return Correlations(
        stage=stage.position_name,
        source=_pick_source(position_plan(stage, grid), source),
        grid=grid,
        token=token if isinstance(token, int) else (token[0], token[1]),
        num_prefix=num_prefix - first,
        names=tuple(position.name for position in positions),
        matrices=np.stack(matrices),
        maps=np.stack(maps),
    )


def _grid_of(stage: Stage, grid: Grid | None) -> Grid:
    return position_of(stage).embedding.grid if grid is None else check_grid('grid', grid)


def _pick_source(plan: PositionPlan, source: str | None) -> str:
    there = plan_sources(plan)
    if source is None:
        if len(there) != 1:
            raise ValueError(
                f'the position joins in several places: choose source from {list(there)}'
            )
        return there[0]
    if check_option('source', source, SOURCES) not in there:
        raise ValueError(f'source must be one of {list(there)} for this joining, got {source!r}')
    return source


def _in_stream(stage: Stage, plan: PositionPlan, grid: Grid) -> list[Tensor | None]:
    """Per layer, its norm of the position that is in the residual stream when the layer reads it."""
    collected, rows = plan.stem, []
    with torch.no_grad():
        for block, entry in zip(stage.blocks, plan.stream):
            if entry is not None:
                collected = entry if collected is None else collected + entry
            norm = block.get_submodule('norm1')
            rows.append(None if collected is None else _normed(norm, collected, grid))
    return rows


def _normed(norm: torch.nn.Module, position: Tensor, grid: Grid) -> Tensor:
    # lambda_2 of a row without spread is 0, whatever the bias of the norm.
    spread = position.std(dim=-1, keepdim=True, correction=0)
    return norm(position, grid) * (spread > 0)


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.full_like(rows, np.nan), where=length > 0)


def _to_numpy(rows: Tensor) -> np.ndarray:
    """``(1, N, C)`` to ``(N, C)``."""
    return rows[0].detach().cpu().double().numpy()
