r"""Position inside attention layers: what it adds to their scores, and the tables that it is made from.

A relative position bias, and the position channels of :class:`~mmlape.position.GaborAttention` (part 4,
:math:`pos_q pos_k^T / \sqrt d`), add the same to a layer's scores for every image: per head, a matrix of queries by
keys. It is shown as it is added, before the softmax; a constant along a row (one query) makes no difference to weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage, find_stages
from mmlape.checks import check_grid, check_layers, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import (
    AttentionPosition,
    GaborAttention,
    PositionEmbedding,
    RelativePositionBias,
)

from .correlation import MAX_TOKENS, centre_of, token_row
from .tables import EmbeddingTable


def _bias_scores(position: RelativePositionBias, grid: Grid) -> Tensor:
    return position.bias(Layout(grid, position.num_prefix_tokens))


def _channel_scores(position: GaborAttention, grid: Grid) -> Tensor | None:
    layout = Layout(grid, position.num_prefix_tokens)
    placed = position.prepare(layout, layout)
    if placed.beside_query is None or placed.beside_key is None:
        return None  # parts 2 and 3 depend on the image
    scale = (position.embed_dims // position.num_heads) ** -0.5
    return scale * placed.beside_query @ placed.beside_key.mT


# What adds the same to the scores of every image: (1, heads, P + H * W, P + H * W), or None for nothing.
_SCORES = {RelativePositionBias: _bias_scores, GaborAttention: _channel_scores}


def _scores(position: AttentionPosition, grid: Grid) -> Tensor | None:
    with torch.no_grad():
        for cls, compute in _SCORES.items():
            if isinstance(position, cls):
                return compute(position, grid)
    return None


def _rows(position: AttentionPosition, grid: Grid) -> list[tuple[str, int, Grid, np.ndarray]]:
    """Name, prefix rows, grid, and rows by channels of everything that a position is made from."""
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


def _positions(
    stage: Stage, layers: int | Sequence[int] | None = None, with_scores: bool = False
) -> dict[int, AttentionPosition]:
    """By layer, those asked for that have one."""
    found = {}
    for layer in check_layers('layers', layers, len(stage.blocks)):
        position = getattr(stage.blocks[layer].attn, 'position', None)
        # A single cell tells whether there are scores.
        if isinstance(position, AttentionPosition) and not (
            with_scores and _scores(position, (1, 1)) is None
        ):
            found[layer] = position
    return found


def _grid_of(position: AttentionPosition, grid: Grid | None) -> Grid:
    windowed = isinstance(position, RelativePositionBias) and position.window_size is not None
    if grid is None or windowed:
        return position.grid
    return check_grid('grid', grid)


@dataclass(frozen=True)
class PositionScores(Result):
    """What position adds to the scores of attention layers that share a grid.

    Attributes:
        stage: Name of the layers, ``'blocks'``.
        grid: ``(H, W)``; of the window where a bias serves windows.
        token: The chosen query, ``(row, column)`` or the index of a prefix token.
        num_prefix: Rows of prefix tokens that ``matrices`` begin with; 0 where they are left out.
        names: ``'layer 0'``, ...
        matrices: ``(n, N, N)``, queries by keys, N = ``num_prefix`` + H * W; one head, or the mean of all.
        maps: ``(n, H, W)``, what the chosen query's scores receive at every cell.
    """

    stage: str
    grid: Grid
    token: tuple[int, int] | int
    num_prefix: int
    names: tuple[str, ...]
    matrices: np.ndarray
    maps: np.ndarray


def attention_position_stages(backbone: nn.Module, with_scores: bool = False) -> list[Stage]:
    """Stages with a position inside the attention, maybe none.

    Args:
        backbone: As for :func:`~mmlape.analysis.find_stages`.
        with_scores: Only those whose position adds to scores whatever the image. Default False.

    Raises:
        ValueError: If the network has no transformer layers of our kind.
    """
    return [stage for stage in find_stages(backbone) if _positions(stage, None, with_scores)]


def position_scores(
    stage: Stage,
    grid: Grid | None = None,
    token: int | Sequence[int] | None = None,
    with_prefix: bool = False,
    layers: int | Sequence[int] | None = None,
    head: int | None = None,
) -> list[PositionScores]:
    """What position adds to the scores of the layers of a stage, as matrices and as one query's maps.

    Args:
        stage: From :func:`attention_position_stages`.
        grid: ``(H, W)`` in tokens. Default None: the grid that each position was built for. A bias of windows is shown
            at the window's.
        token: The query of the maps, ``(row, column)`` or the index of a prefix token. Default None: the centre.
        with_prefix: Keep prefix tokens in the matrices. Default False.
        layers: None (default) for all, a number of first layers, or a list of 0-based indices.
        head: Default None: the mean over heads.

    Returns:
        One entry for each grid that layers have (windows of different sizes).

    Raises:
        ValueError: If a layer, head or token does not exist, no layer asked for has such a position, or the scores
            would not fit in memory.
    """
    positions = _positions(stage, layers, with_scores=True)
    if not positions:
        raise ValueError(f'none of these layers of {stage.name!r} has a position in its scores')
    by_grid: dict[Grid, dict[int, AttentionPosition]] = {}
    for layer, position in positions.items():
        by_grid.setdefault(_grid_of(position, grid), {})[layer] = position
    return [
        _of_one_grid(stage.name, size, group, token, with_prefix, head)
        for size, group in by_grid.items()
    ]


def attention_tables(
    stage: Stage, grid: Grid | None = None, with_prefix: bool = True
) -> list[EmbeddingTable]:
    """What the position inside attention is made from; one table for each layer (K of them) that has it.

    * Gabor or learned channels: ``'blocks.query'``, ``'blocks.key'``, ``'blocks.value'``, ...: tokens by channels, all
      heads side by side.
    * Relative bias: ``'blocks.bias'``: offsets of key and query by heads, so the grid is ``(2 * H - 1, 2 * W - 1)``,
      and the middle is a token's bias on itself.

    Args:
        stage: From :func:`attention_position_stages`.
        grid: ``(H, W)`` in tokens. Default None: the grid that each position was built for.
        with_prefix: Keep the rows of prefix tokens. Default True.
    """
    found: dict[tuple[str, Grid, int], list[np.ndarray]] = {}
    for position in _positions(stage).values():
        size = _grid_of(position, grid)
        for name, num_prefix, shown, rows in _rows(position, size):
            first = 0 if with_prefix else num_prefix
            key = (f'{stage.name}.{name}', shown, num_prefix - first)
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


def _of_one_grid(
    name: str,
    grid: Grid,
    positions: dict[int, AttentionPosition],
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
    matrices = []
    for position in positions.values():
        scores = _scores(position, grid)
        if scores is not None:
            of_heads = scores[0].float()
            shown = of_heads.mean(dim=0) if head is None else of_heads[head]
            matrices.append(shown.cpu().numpy())
    left_out = 0 if with_prefix else num_prefix
    return PositionScores(
        stage=name,
        grid=grid,
        token=token if isinstance(token, int) else (token[0], token[1]),
        num_prefix=num_prefix - left_out,
        names=tuple(f'layer {layer}' for layer in positions),
        matrices=np.stack([matrix[left_out:, left_out:] for matrix in matrices]),
        maps=np.stack([matrix[chosen, num_prefix:].reshape(grid) for matrix in matrices]),
    )
