"""The embedding itself, as arrays: tokens by channels, maps per channel, and the same at several grids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage, position_of
from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid


@dataclass(frozen=True)
class EmbeddingTable(Result):
    """A position embedding at one grid.

    Attributes:
        stage: Name of the stage that it belongs to.
        grid: ``(H, W)``.
        num_prefix: Rows of prefix tokens that come first.
        tables: ``(K, P + H * W, C)``; K > 1 where every layer has its own.
        rows, columns: What they are; ``'offset'`` and ``'head'`` for a relative bias. Default ``'token'`` and
            ``'channel'``.
    """

    stage: str
    grid: Grid
    num_prefix: int
    tables: np.ndarray
    rows: str = 'token'
    columns: str = 'channel'

    def table(self, index: int = 0) -> np.ndarray:
        """Table ``index`` as ``(P + H * W, C)``.

        Raises:
            ValueError: If there is no such table.
        """
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
        stage: From :func:`~mmlape.analysis.position_stages`.
        grid: ``(H, W)`` in tokens. Default None: the grid that the embedding was built for.
        with_prefix: Keep the rows of prefix tokens. Default True.
    """
    embedding = position_of(stage).embedding
    grid = embedding.grid if grid is None else check_grid('grid', grid)
    with torch.no_grad():
        tables = embedding(grid).detach().cpu().float().numpy()
    num_prefix = embedding.num_prefix_tokens
    if not with_prefix:
        tables, num_prefix = tables[:, num_prefix:], 0
    return EmbeddingTable(stage.position_name, grid, num_prefix, tables)


def pick_channels(
    num_channels: int, channels: Sequence[int] | None = None, count: int = 24
) -> list[int]:
    """The channels asked for, or ``count`` evenly spread ones.

    Raises:
        ValueError: If a channel does not exist, or none is named.
    """
    if channels is None:
        return np.unique(np.linspace(0, num_channels - 1, count).round().astype(int)).tolist()
    if not channels:
        raise ValueError('channels must name at least one channel')
    for channel in channels:
        check_positive_int('channel', channel, minimum=0, maximum=num_channels - 1)
    return list(channels)
