r"""Position as arrays: tables, tokens by channels; the correlation of two tokens' positions per layer (LaPE, ICCV 2023,
eq. 12), how alike they look to it; and what position adds to the scores of the attention.

What is correlated is what position contributes to the input of a layer's attention:

* **LaPE** adds :math:`LN_{\omega,l}(\omega_l)` (eq. 9): it is taken from the plan as it is.
* **Default joining** hides it in the residual stream. By eq. 6,
  :math:`LN_l(\tilde x_l + \omega) = \lambda_1 LN_l(\tilde x_l) + \lambda_2 LN_l(\omega) + \lambda_3 \beta_l`, and
  :math:`\lambda_2 LN_l(\omega)` is shown. :math:`\lambda_2 = \sigma_\omega / \sigma_{\tilde x + \omega}` (eq. 7)
  depends on the image, but it is one positive number per token, which a cosine ignores: the correlation is that of
  :math:`LN_l(\omega)`, for every image. Where :math:`\sigma_\omega = 0` (a token without position),
  :math:`\lambda_2 = 0`: there is no correlation (NaN).
* **Shared and unshared joining** add to the stream before every layer, and what was added stays there. So layer l reads
  the sum of all entries up to its own, and :math:`LN_l` of that sum is shown; for shared joining the sum is a multiple
  of :math:`\omega` and shows what :math:`\omega` shows.

Another token norm than LayerNorm is applied instead of it. For a norm with heads (DTN), :math:`\lambda_2` is one number
per token and head, of which the picture takes all as equal.

A relative position bias, and the position channels of :class:`~mmlape.position.GaborAttention` (part 4,
:math:`pos_q pos_k^T / \sqrt d`), add the same to a layer's scores for every image: per head, a matrix of queries by
keys. It is shown as it is added, before the softmax; a constant along a row (one query) makes no difference to weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.backbones import Stage
from mmlape.checks import check_grid, check_layers, check_option, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import (
    AttentionPosition,
    GaborAttention,
    PositionEmbedding,
    PositionPlan,
    RelativePositionBias,
)

from . import SOURCES
from .loading import Layers, Result, find_stages, position_of

# A matrix of 8192 x 8192 correlations in float32 is 256 MiB.
MAX_TOKENS = 8192
# (row, column) of a cell, or the index of a prefix token; None: the centre.
Token = int | Sequence[int] | None


@dataclass(frozen=True)
class EmbeddingTable(Result):
    """A position embedding at one grid."""

    stage: str  #: Name of the stage that it belongs to.
    grid: Grid  #: ``(H, W)``.
    num_prefix: int  #: Rows of prefix tokens that come first.
    tables: np.ndarray  #: ``(K, P + H * W, C)``; K > 1 where every layer has its own.
    #: What they are; ``'offset'`` and ``'head'`` for a relative bias. Default ``'token'`` and ``'channel'``.
    rows: str = 'token'
    columns: str = 'channel'  #: likewise

    def table(self, index: int = 0) -> np.ndarray:
        """Table ``index`` as ``(P + H * W, C)``; ValueError if there is none."""
        check_positive_int('table', index, minimum=0, maximum=len(self.tables) - 1)
        return self.tables[index]

    def maps(self, index: int = 0) -> np.ndarray:
        """Table ``index`` without prefix rows, one map per channel: ``(C, H, W)``."""
        return self.table(index)[self.num_prefix :].T.reshape(-1, *self.grid)


def embedding_table(
    stage: Stage, grid: Grid | None = None, with_prefix: bool = True
) -> EmbeddingTable:
    """The embedding of a stage.

    Args:
        with_prefix: Keep the rows of prefix tokens. Default True."""
    embedding, grid = position_of(stage).embedding, grid_of(stage, grid)
    with torch.no_grad():
        tables = embedding(grid).detach().cpu().float().numpy()
    num_prefix = embedding.num_prefix_tokens
    if not with_prefix:
        tables, num_prefix = tables[:, num_prefix:], 0
    return EmbeddingTable(stage.position_name, grid, num_prefix, tables)


def grid_of(stage: Stage, grid: Grid | None) -> Grid:
    """``grid``, or that which the embedding of a stage was built for."""
    return position_of(stage).embedding.grid if grid is None else check_grid('grid', grid)


def pick_channels(
    num_channels: int, channels: Sequence[int] | None = None, count: int = 24
) -> list[int]:
    """The channels asked for (ValueError if one does not exist, or none is named), or ``count`` evenly spread ones."""
    if channels is None:
        return np.unique(np.linspace(0, num_channels - 1, count).round().astype(int)).tolist()
    if not channels:
        raise ValueError('channels must name at least one channel')
    for channel in channels:
        check_positive_int('channel', channel, minimum=0, maximum=num_channels - 1)
    return list(channels)


def scores_of(position: AttentionPosition, grid: Grid) -> Tensor | None:
    """What a position adds to the scores of every image, ``(1, heads, P + H * W, P + H * W)``, or None for nothing."""
    layout = Layout(grid, position.num_prefix_tokens)
    with torch.no_grad():
        if isinstance(position, RelativePositionBias):
            return position.bias(layout)
        if not isinstance(position, GaborAttention):
            return None
        placed = position.prepare(layout, layout)
        if placed.beside_query is None or placed.beside_key is None:
            return None  # parts 2 and 3 depend on the image
        scale = (position.embed_dims // position.num_heads) ** -0.5
        return scale * placed.beside_query @ placed.beside_key.mT


def positions_inside(
    stage: Stage, layers: Layers = None, with_scores: bool = False
) -> dict[int, AttentionPosition]:
    """The positions inside the attention, by layer, of those layers asked for that have one."""
    found = {}
    for layer in check_layers('layers', layers, len(stage.blocks)):
        position = getattr(stage.blocks[layer].attn, 'position', None)
        # A single cell tells whether there are scores.
        if isinstance(position, AttentionPosition) and not (
            with_scores and scores_of(position, (1, 1)) is None
        ):
            found[layer] = position
    return found


def shown_grid(position: AttentionPosition, grid: Grid | None) -> Grid:
    """``grid``, or what a position inside the attention was built for; always the window of a bias with windows."""
    windowed = isinstance(position, RelativePositionBias) and position.window_size is not None
    return position.grid if grid is None or windowed else check_grid('grid', grid)


def attention_position_stages(backbone: nn.Module, with_scores: bool = False) -> list[Stage]:
    """Stages with a position inside the attention, maybe none.

    Args:
        with_scores: Only those whose position adds the same to the scores of every image. Default False.

    Raises ValueError if the network has no transformer layers of our kind."""
    return [stage for stage in find_stages(backbone) if positions_inside(stage, None, with_scores)]


def attention_tables(
    stage: Stage, grid: Grid | None = None, with_prefix: bool = True
) -> list[EmbeddingTable]:
    """What the position inside attention is made from; one table for each layer (K of them) that has it.

    * Gabor or learned channels: ``'blocks.query'``, ``'blocks.key'``, ``'blocks.value'``, ...: tokens by channels, all
      heads side by side.
    * Relative bias: ``'blocks.bias'``: offsets of key and query by heads, so the grid is ``(2 * H - 1, 2 * W - 1)``,
      and the middle is a token's bias on itself.

    Args:
        with_prefix: Keep the rows of prefix tokens. Default True."""
    found: dict[tuple[str, Grid, int], list[np.ndarray]] = {}
    for position in positions_inside(stage).values():
        for name, num_prefix, size, rows in _rows(position, shown_grid(position, grid)):
            first = 0 if with_prefix else num_prefix
            key = (f'{stage.name}.{name}', size, num_prefix - first)
            found.setdefault(key, []).append(rows[first:])
    names = [name for name, _, _ in found]
    return [
        EmbeddingTable(
            name if names.count(name) == 1 else f'{name}.{size[0]}x{size[1]}',
            size,
            num_prefix,
            np.stack(tables),
            *(('offset', 'head') if name.endswith('.bias') else ()),
        )
        for (name, size, num_prefix), tables in found.items()
    ]


def _rows(position: AttentionPosition, grid: Grid) -> list[tuple[str, int, Grid, np.ndarray]]:
    """Name, number of prefix rows, grid, and rows by channels of everything that a position is made from."""
    with torch.no_grad():
        if isinstance(position, RelativePositionBias):
            # The stored order is query minus key; as a map around the query, key minus query.
            table = position.table(grid).flip(0)
            offsets = (2 * grid[0] - 1, 2 * grid[1] - 1)
            return [('bias', 0, offsets, table.float().cpu().numpy())]
        return [
            (name, child.num_prefix_tokens, grid, child(grid)[0].float().cpu().numpy())
            for name, child in position.named_children()
            if isinstance(child, PositionEmbedding)
        ]


class LayerPosition(NamedTuple):
    """What position contributes to one layer."""

    name: str  #: ``'embedding'`` for the embedding itself, before any layer; ``'layer 0'``, ...
    rows: np.ndarray  #: ``(P + H * W, C)``, float64; a row of zeros is a token without position.


@dataclass(frozen=True)
class PositionScores(Result):
    """What position adds to the scores of attention layers that share a grid."""

    stage: str  #: Name of the layers, ``'blocks'``.
    grid: Grid  #: ``(H, W)``; of the window where a bias serves windows.
    token: (
        int | tuple[int, int]
    )  #: The chosen query, ``(row, column)`` or the index of a prefix token.
    num_prefix: (
        int  #: Rows of prefix tokens that ``matrices`` begin with; 0 where they are left out.
    )
    names: tuple[str, ...]  #: ``'layer 0'``, ...
    #: ``(n, N, N)``, queries by keys, N = ``num_prefix`` + H * W; one head, or the mean of all.
    matrices: np.ndarray
    maps: np.ndarray  #: ``(n, H, W)``, what the chosen query's scores receive at every cell.


@dataclass(frozen=True)
class Correlations(PositionScores):
    """Position correlations of a stage.

    Attributes:
        names: ``'embedding'``, ``'layer 0'``, ...
        matrices: ``(n, N, N)``, cosines of tokens.
        maps: ``(n, H, W)``, the chosen token's correlation with every cell."""

    source: str  #: ``'attention'`` or ``'stream'``.


def position_plan(stage: Stage, grid: Grid | None = None) -> PositionPlan:
    """The plan of a stage for ``grid = (H, W)``, by default the grid that it was built for; without gradients."""
    position = position_of(stage)
    with torch.no_grad():
        return position.joining(position.embedding(grid_of(stage, grid)))


def plan_sources(plan: PositionPlan) -> tuple[str, ...]:
    """Where a plan puts position: ``'attention'`` (LaPE), ``'stream'`` (all others), or both (a warm start)."""
    used = {
        'attention': any(entry is not None for entry in plan.attention),
        'stream': plan.stem is not None or any(entry is not None for entry in plan.stream),
    }
    return tuple(source for source in SOURCES if used[source])


def layer_positions(
    stage: Stage, grid: Grid | None = None, source: str | None = None, layers: Layers = None
) -> list[LayerPosition]:
    """What position contributes to the attention of each layer; see the head of this module for each joining method.

    Args:
        source: ``'attention'`` or ``'stream'``, for a plan with both. Default None: what there is.

    Returns:
        The embedding itself where all layers share one, then each layer asked for that receives position.

    Raises ValueError if ``source`` is unknown, not in the plan, or left out where the plan has both; or ``layers`` is
    out of range, or none of them receives position."""
    grid = grid_of(stage, grid)
    plan = position_plan(stage, grid)
    wanted = check_layers('layers', layers, len(stage.blocks))
    from_attention = _pick_source(plan, source) == 'attention'
    rows = plan.attention if from_attention else _rows_in_stream(stage, plan, grid)
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
    """Cosine similarity of every row with every other (eq. 12), ``(N, M)`` float32; NaN where a row is zero.

    Args:
        rows: ``(N, C)``.
        others: ``(M, C)``. Default None: the rows themselves.

    Raises ValueError if more than 8192 x 8192 values would come out."""
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

    Raises ValueError if there is no such token; TypeError if ``token`` is neither an integer nor a pair of them."""
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
    """Correlation ``(H, W)`` of one token (see :func:`token_row`) of ``rows`` ``(P + H * W, C)`` with every cell."""
    chosen = token_row(token, grid, num_prefix)
    return cosine_matrix(rows[[chosen]], rows[num_prefix:]).reshape(grid)


def centre_of(grid: Grid) -> tuple[int, int]:
    """The cell in the middle, the lower right one of four."""
    return grid[0] // 2, grid[1] // 2


def position_correlations(
    stage: Stage,
    grid: Grid | None = None,
    token: Token = None,
    with_prefix: bool = False,
    source: str | None = None,
    layers: Layers = None,
) -> Correlations:
    """Correlation matrices of all layers, and the row of one token as maps (LaPE, ICCV 2023, Figures 3 and 4).

    Args:
        stage, grid, source, layers: See :func:`layer_positions`.
        token: The token of the maps, ``(row, column)`` or the index of a prefix token. Default None: the centre.
        with_prefix: Keep prefix tokens in the matrices. Default False.

    Raises ValueError as :func:`layer_positions`, :func:`token_row` and :func:`cosine_matrix`."""
    grid = grid_of(stage, grid)
    token = centre_of(grid) if token is None else token
    num_prefix = position_of(stage).embedding.num_prefix_tokens
    token_row(token, grid, num_prefix)  # refused before anything is computed
    positions = layer_positions(stage, grid, source, layers)
    first = 0 if with_prefix else num_prefix
    maps = [correlation_map(position.rows, token, grid, num_prefix) for position in positions]
    return Correlations(
        stage=stage.position_name,
        source=_pick_source(position_plan(stage, grid), source),
        grid=grid,
        token=_as_token(token),
        num_prefix=num_prefix - first,
        names=tuple(position.name for position in positions),
        matrices=np.stack([cosine_matrix(position.rows[first:]) for position in positions]),
        maps=np.stack(maps),
    )


def position_scores(
    stage: Stage,
    grid: Grid | None = None,
    token: Token = None,
    with_prefix: bool = False,
    layers: Layers = None,
    head: int | None = None,
) -> list[PositionScores]:
    """What position adds to the scores of the layers of a stage, as matrices and as one query's maps.

    Args:
        grid: ``(H, W)`` in tokens. Default None: the grid that each position was built for. A bias of windows is shown
            at the window's.
        token: The query of the maps, ``(row, column)`` or the index of a prefix token. Default None: the centre.
        with_prefix: Keep prefix tokens in the matrices. Default False.
        head: Default None: the mean over heads.

    Returns:
        One entry for each grid that layers have (windows of different sizes).

    Raises ValueError if a layer, head or token does not exist, no layer asked for has such a position, or the scores
    would not fit in memory."""
    positions = positions_inside(stage, layers, with_scores=True)
    if not positions:
        raise ValueError(f'none of these layers of {stage.name!r} has a position in its scores')
    by_grid: dict[Grid, dict[int, AttentionPosition]] = {}
    for layer, position in positions.items():
        by_grid.setdefault(shown_grid(position, grid), {})[layer] = position
    return [
        _scores_of_grid(stage.name, size, group, token, with_prefix, head)
        for size, group in by_grid.items()
    ]


def _scores_of_grid(
    name: str,
    grid: Grid,
    positions: Mapping[int, AttentionPosition],
    token: int | Sequence[int] | None,
    with_prefix: bool,
    head: int | None,
) -> PositionScores:
    token = centre_of(grid) if token is None else token
    first = next(iter(positions.values()))
    num_prefix, num_heads = first.num_prefix_tokens, first.num_heads
    chosen = token_row(token, grid, num_prefix)
    if head is not None:
        check_positive_int('head', head, minimum=0, maximum=num_heads - 1)
    tokens = num_prefix + grid[0] * grid[1]
    if num_heads * tokens**2 > MAX_TOKENS**2:
        raise ValueError(
            f'the scores of {tokens} x {tokens} tokens and {num_heads} heads do not fit in memory: '
            'take a smaller grid'
        )
    of_heads = [scores_of(position, grid)[0].float() for position in positions.values()]  # type: ignore[index]
    matrices = torch.stack([each.mean(0) if head is None else each[head] for each in of_heads])
    shown, left_out = matrices.cpu().numpy(), 0 if with_prefix else num_prefix
    return PositionScores(
        stage=name,
        grid=grid,
        token=_as_token(token),
        num_prefix=num_prefix - left_out,
        names=tuple(f'layer {layer}' for layer in positions),
        matrices=shown[:, left_out:, left_out:],
        maps=shown[:, chosen, num_prefix:].reshape(-1, *grid),
    )


def _as_token(token: int | Sequence[int]) -> int | tuple[int, int]:
    return token if isinstance(token, int) else (token[0], token[1])


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


def _rows_in_stream(stage: Stage, plan: PositionPlan, grid: Grid) -> list[Tensor | None]:
    """Per layer, its norm of the position that is in the residual stream when the layer reads it."""
    collected, rows = plan.stem, []
    with torch.no_grad():
        for block, entry in zip(stage.blocks, plan.stream):
            if entry is not None:
                collected = entry if collected is None else collected + entry
            norm = block.get_submodule('norm1')
            rows.append(None if collected is None else _normed(norm, collected, grid))
    return rows


def _normed(norm: nn.Module, position: Tensor, grid: Grid) -> Tensor:
    # lambda_2 of a row without spread is 0, whatever the bias of the norm.
    spread = position.std(dim=-1, keepdim=True, correction=0)
    return norm(position, grid) * (spread > 0)


def _unit_rows(rows: np.ndarray) -> np.ndarray:
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    return np.divide(rows, length, out=np.full_like(rows, np.nan), where=length > 0)


def _to_numpy(rows: Tensor) -> np.ndarray:
    """``(1, N, C)`` to ``(N, C)``."""
    return rows[0].detach().cpu().double().numpy()
