r"""Position as arrays: tables, tokens by channels; the correlation of two tokens' positions per layer (LaPE, ICCV 2023,
eq. 12); and what position adds to the scores of the attention.

What is correlated is what position contributes to the input of a layer's attention: with LaPE what the plan adds there
(eq. 9), otherwise :math:`\lambda_2 LN_l(\omega)` of eq. 6. docs/pictures.md says more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.backbones import Stage
from mmlape.checks import check_grid, check_layers, check_option, check_positive_int
from mmlape.layers import PostNormBlock, StreamNormBlock
from mmlape.layout import Grid, Layout
from mmlape.position import (
    AttentionPosition,
    GaborAttention,
    PositionEmbedding,
    PositionPlan,
    QuadraticBias,
)
from mmlape.position.relative_bias import OffsetBias

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
    rows: str = 'token'  #: What rows are; ``'offset'`` for a relative bias.
    columns: str = 'channel'  #: What columns are; ``'head'`` for a relative bias.

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
        tables = embedding(grid).cpu().float().numpy()
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
    """Return what a position adds to the scores of every image, ``(1, heads, P + H * W, P + H * W)``, or None."""
    layout = Layout(grid, position.num_prefix_tokens)
    with torch.no_grad():
        if isinstance(position, (OffsetBias, QuadraticBias)):
            return position.bias(layout, layout)
        if not isinstance(position, GaborAttention):
            return None
        _, _, query, key, _ = position.prepare(layout, layout)
        if query is None or key is None:
            return None  # parts 2 and 3 depend on the image
        scale = (position.embed_dims // position.num_heads) ** -0.5
        return scale * query @ key.mT


def positions_inside(
    stage: Stage, layers: Layers = None, with_scores: bool = False
) -> dict[int, AttentionPosition]:
    """The positions inside the attention, by layer, of those layers asked for that have one.

    A position that the layers share is not that of layers with windows, which resize it.

    Args:
        with_scores: Only where position adds the same to the scores of every image, between tokens of one grid.
    """
    found = {}
    for layer in check_layers('layers', layers, len(stage.blocks)):
        attention = stage.blocks[layer].attn
        position = getattr(attention, 'position', None)
        if position is None and getattr(attention, 'window_size', None) is None:
            position = stage.attention_position
        if not isinstance(position, AttentionPosition):
            continue
        # A single cell tells whether there are scores.
        none = getattr(attention, 'reduces', False) or scores_of(position, (1, 1)) is None
        if not (with_scores and none):
            found[layer] = position
    return found


def shown_grid(position: AttentionPosition, grid: Grid | None) -> Grid:
    """``grid``, or what a position inside the attention was built for; always the window of a bias with windows."""
    if isinstance(position, (OffsetBias, QuadraticBias)) and position.window_size is not None:
        return position.window_size
    return position.grid if grid is None else check_grid('grid', grid)


def attention_position_stages(backbone: nn.Module, with_scores: bool = False) -> list[Stage]:
    """Stages with a position inside the attention, maybe none.

    Args:
        with_scores: Only those whose position adds the same to the scores of every image. Default False.

    Raises ValueError if the network has no transformer layers of our kind."""
    return [stage for stage in find_stages(backbone) if positions_inside(stage, None, with_scores)]


def attention_tables(
    stage: Stage, grid: Grid | None = None, with_prefix: bool = True
) -> list[EmbeddingTable]:
    """Return the tables of the position inside attention, one for each layer (K of them) that has it.

    * Gabor or learned channels: ``'blocks.query'``, ``'blocks.key'``, ``'blocks.value'``, ...: tokens by channels, all
      heads side by side.
    * Relative bias: ``'blocks.bias'``: offsets of key and query by heads, so the grid is ``(2 * H - 1, 2 * W - 1)``,
      and the middle is a token's bias on itself.

    Args:
        with_prefix: Keep the rows of prefix tokens. Default True."""
    found: dict[tuple[str, Grid, int], list[np.ndarray]] = {}
    for position in positions_inside(stage).values():
        size = shown_grid(position, grid)
        with torch.no_grad():
            if isinstance(position, OffsetBias):
                # The stored order is query minus key; as a map around the query, key minus query.
                tables = {'bias': (0, position.table(size).flip(0))}
                size = 2 * size[0] - 1, 2 * size[1] - 1
            else:
                tables = {
                    name: (child.num_prefix_tokens, child(size)[0])
                    for name, child in position.named_children()
                    if isinstance(child, PositionEmbedding)
                }
        for name, (num_prefix, rows) in tables.items():
            kept = num_prefix if with_prefix else 0
            shown = rows[num_prefix - kept :].float().cpu().numpy()
            found.setdefault((f'{stage.name}.{name}', size, kept), []).append(shown)
    names = [name for name, _, _ in found]
    return [
        EmbeddingTable(
            name if names.count(name) == 1 else f'{name}.{size[0]}x{size[1]}',
            size,
            num_prefix,
            np.stack(shown),
            *(('offset', 'head') if name.endswith('.bias') else ()),
        )
        for (name, size, num_prefix), shown in found.items()
    ]


@dataclass(frozen=True)
class PositionScores(Result):
    """Scores that position adds in attention layers that share a grid."""

    stage: str  #: Name of the layers, ``'blocks'``.
    grid: Grid  #: ``(H, W)``; of the window where a bias serves windows.
    #: The chosen query, ``(row, column)`` or the index of a prefix token.
    token: int | Sequence[int]
    #: Rows of prefix tokens that ``matrices`` begin with; 0 where they are left out.
    num_prefix: int
    names: tuple[str, ...]  #: ``'layer 0'``, ...
    #: ``(n, N, N)``, queries by keys, N = ``num_prefix`` + H * W; one head, or the mean of all.
    matrices: np.ndarray
    maps: np.ndarray  #: ``(n, H, W)``, what the chosen query's scores receive at every cell.


@dataclass(frozen=True)
class Correlations(PositionScores):
    """Position correlations of a stage: ``names`` are ``'embedding'``, ``'layer 0'``, ..., ``matrices`` ``(n, N, N)``
    cosines of tokens, ``maps`` ``(n, H, W)`` the chosen token's correlation with every cell."""

    source: str  #: ``'attention'`` or ``'stream'``.


def position_plan(stage: Stage, grid: Grid | None = None) -> PositionPlan:
    """The plan of a stage for ``grid = (H, W)``, by default the grid that it was built for; without gradients."""
    position = position_of(stage)
    with torch.no_grad():
        return position.joining(position.embedding(grid_of(stage, grid)))


def plan_sources(plan: PositionPlan) -> tuple[str, ...]:
    """Where a plan puts position: ``'attention'`` (LaPE), ``'stream'`` (all others), or both (a warm start)."""
    used = plan.attention, (plan.stem, *plan.stream)
    return tuple(s for s, parts in zip(SOURCES, used) if any(part is not None for part in parts))


def layer_positions(
    stage: Stage, grid: Grid | None = None, source: str | None = None, layers: Layers = None
) -> dict[str, np.ndarray]:
    """Return what position contributes to the attention of each layer; docs/pictures.md tells for each joining method.

    Args:
        source: ``'attention'`` or ``'stream'``, for a plan with both. Default None: what there is.

    Returns:
        ``(P + H * W, C)`` float64 by name: ``'embedding'``, the embedding itself, where all layers share one; then
        ``'layer 0'``, ..., of those asked for that receive position. A row of zeros is a token without position.

    Raises ValueError if ``source`` is unknown, not in the plan, or left out where the plan has both; or ``layers`` is
    out of range, or none of them receives position."""
    grid = grid_of(stage, grid)
    plan = position_plan(stage, grid)
    wanted = check_layers('layers', layers, len(stage.blocks))
    from_attention = _pick_source(plan, source) == 'attention'
    rows = plan.attention if from_attention else _rows_in_stream(stage, plan, grid)
    found = {f'layer {n}': each for n in wanted if (each := rows[n]) is not None}
    if not found:
        raise ValueError(f'none of the layers {list(wanted)} receives position')
    with torch.no_grad():
        embedding = position_of(stage).embedding(grid)
    if len(embedding) == 1:
        found = {'embedding': embedding} | found
    return {name: rows[0].detach().cpu().double().numpy() for name, rows in found.items()}


def cosine_matrix(rows: np.ndarray, others: np.ndarray | None = None) -> np.ndarray:
    """Cosine similarity of every row with every other (eq. 12), ``(N, M)`` float32; NaN where a row is zero.

    Args:
        rows: ``(N, C)``.
        others: ``(M, C)``. Default None: the rows themselves.

    Raises ValueError if more than 8192 x 8192 values would come out."""
    others = rows if others is None else others
    _check_memory(f'correlations of {len(rows)} x {len(others)} tokens', len(rows) * len(others))
    units, other_units = (
        np.divide(part, length, out=np.full_like(part, np.nan), where=length > 0)
        for part in (rows, others)
        for length in [np.linalg.norm(part, axis=1, keepdims=True)]
    )
    return np.clip(units @ other_units.T, -1, 1).astype(np.float32)


def _check_memory(what: str, count: int) -> None:
    if count > MAX_TOKENS**2:
        raise ValueError(
            f'the {what} do not fit in memory, the limit is {MAX_TOKENS} x {MAX_TOKENS}: take a smaller grid'
        )


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
    for name, value, size in zip(('row', 'column'), token, grid):
        check_positive_int(f'{name} of the token', value, minimum=0, maximum=size - 1)
    return num_prefix + token[0] * grid[1] + token[1]


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
    num_prefix = position_of(stage).embedding.num_prefix_tokens
    positions = layer_positions(stage, grid, source, layers)
    matrices = np.stack([cosine_matrix(rows) for rows in positions.values()])
    return Correlations(
        stage=stage.position_name,
        source=_pick_source(position_plan(stage, grid), source),
        names=tuple(positions),
        **_shown(matrices, grid, token, num_prefix, with_prefix),
    )


def _shown(
    matrices: np.ndarray, grid: Grid, token: Token, num_prefix: int, with_prefix: bool
) -> dict[str, Any]:
    """Return fields of :class:`PositionScores` for matrices ``(n, P + H * W, P + H * W)`` and the token asked for."""
    token = centre_of(grid) if token is None else token
    row, first = token_row(token, grid, num_prefix), 0 if with_prefix else num_prefix
    return dict(
        grid=grid,
        token=token if isinstance(token, int) else tuple(token),
        num_prefix=num_prefix - first,
        matrices=matrices[:, first:, first:],
        maps=matrices[:, row, num_prefix:].reshape(-1, *grid),
    )


def position_scores(
    stage: Stage,
    grid: Grid | None = None,
    token: Token = None,
    with_prefix: bool = False,
    layers: Layers = None,
    head: int | None = None,
) -> list[PositionScores]:
    """Return what position adds to the scores of the layers of a stage, as matrices and as one query's maps.

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
        raise ValueError(
            f'none of these layers of {stage.name!r} has a position in the scores of all its tokens'
        )
    by_grid: dict[Grid, dict[int, AttentionPosition]] = {}
    for layer, position in positions.items():
        by_grid.setdefault(shown_grid(position, grid), {})[layer] = position
    found = []
    for size, group in by_grid.items():
        num_prefix = next(iter(group.values())).num_prefix_tokens
        matrices = np.stack([_score_matrix(position, size, head) for position in group.values()])
        names = tuple(f'layer {layer}' for layer in group)
        shown = _shown(matrices, size, token, num_prefix, with_prefix)
        found.append(PositionScores(stage=stage.name, names=names, **shown))
    return found


def _score_matrix(position: AttentionPosition, grid: Grid, head: int | None) -> np.ndarray:
    """``(P + H * W, P + H * W)`` of a head, or the mean of all."""
    tokens, heads = position.num_prefix_tokens + grid[0] * grid[1], position.num_heads
    if head is not None:
        check_positive_int('head', head, minimum=0, maximum=heads - 1)
    _check_memory(f'scores of {tokens} x {tokens} tokens and {heads} heads', heads * tokens**2)
    scores = scores_of(position, grid)[0].float()  # type: ignore[index]  # it has some
    return (scores.mean(0) if head is None else scores[head]).cpu().numpy()


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
    """Per layer, its norm of the position that is in the residual stream when the layer reads it; the position itself
    where norms stand at the end of branches."""
    rows: list[Tensor | None] = []
    with torch.no_grad():
        for block, there in zip(stage.blocks, in_stream(stage, plan, grid)):
            if there is not None and not isinstance(block, PostNormBlock):
                # lambda_2 of a row without spread is 0, whatever the bias of the norm.
                spread = there.std(dim=-1, keepdim=True, correction=0)
                there = block.norm1(there, grid) * (spread > 0)  # type: ignore[operator]
            rows.append(there)
    return rows


def in_stream(stage: Stage, plan: PositionPlan, grid: Grid) -> list[Tensor | None]:
    """Return what position has added to the stream when each layer reads it, ``(1, P + H * W, C)``; where the stream
    itself passes norms, up to a factor for each token, which depends on the image.

    Raises ValueError where position is added again behind such a norm: its share depends on the image too."""
    passed = [block.norm2 if isinstance(block, StreamNormBlock) else None for block in stage.blocks]
    there, normed, found = plan.stem, False, []
    for norm, added in zip([stage.first_norm, *passed], plan.stream):
        if norm is not None and there is not None:
            bias = getattr(norm, 'bias', None)
            there, normed = norm(there, grid) - (0 if bias is None else bias), True
        if added is not None:
            if normed:
                raise ValueError(
                    f'the position of {stage.name!r} is not defined: it is added again to a stream that has passed a '
                    'norm, by a share that depends on the image'
                )
            there = added if there is None else there + added
        found.append(there)
    return found
