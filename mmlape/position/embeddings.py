"""Position embeddings: one row for every token of any grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_number, check_option, check_positive_int
from mmlape.layout import Grid, cached, can_cache
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast


class PositionEmbedding(nn.Module, ABC):
    """Answers where each token of a grid is.

    Args:
        embed_dims: Channels ``C``.
        grid: Grid ``(H0, W0)`` in tokens that the network is built (pre-trained) for.
        num_prefix_tokens: Rows ``P`` for tokens without a place (class, distillation). They come first. Default 0.
        num_tables: Embeddings ``K`` side by side: more than one where a joining method has one for every layer.
            Default 1.

    Raises:
        ValueError: If a size is not a positive integer.
    """

    # All parameters: a place that shrinks is another place.
    no_weight_decay: ClassVar[tuple[str, ...]] = ('',)

    def __init__(
        self, embed_dims: int, grid: Grid, num_prefix_tokens: int = 0, num_tables: int = 1
    ) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.grid = check_grid('grid', grid)
        self.num_prefix_tokens = check_positive_int(
            'num_prefix_tokens', num_prefix_tokens, minimum=0
        )
        self.num_tables = check_positive_int('num_tables', num_tables)

    @abstractmethod
    def forward(self, grid: Grid) -> Tensor:
        """Return the embedding of ``grid = (H, W)`` as ``(K, P + H * W, C)``, rows in raster order; a
        :class:`~mmlape.layout.Layout` unpacks into such a pair."""


# Options of F.interpolate; `square`: resize to the square of the longer side, then cut off the bottom or right.
_KERNELS: dict[str, dict[str, Any]] = {
    'bicubic': dict(mode='bicubic'),
    'bilinear': dict(mode='bilinear'),
    'bicubic_antialias': dict(mode='bicubic', antialias=True),
    'bilinear_antialias': dict(mode='bilinear', antialias=True),
    'bicubic_antialias_square': dict(mode='bicubic', antialias=True, square=True),
    'bilinear_square': dict(mode='bilinear', square=True),
    'bilinear_corners_square': dict(mode='bilinear', align_corners=True, square=True),
}
RESIZES = tuple(_KERNELS)


def resize_table(table: Tensor, source: Grid, target: Grid, mode: str = 'bicubic') -> Tensor:
    """Resize a table of one row per grid cell, in float32 whatever its dtype.

    Args:
        table: ``(K, H0 * W0, C)``, no prefix rows.
        source: ``(H0, W0)``.
        target: ``(H, W)``.
        mode: As ``resize`` of :class:`~mmlape.position.LearnedPosition`; for a table of offsets also ``'geometric'``
            (BEiT), in which near offsets keep their values. Default ``'bicubic'``.

    Returns:
        ``(K, H * W, C)`` in the dtype of ``table``; ``table`` itself where the grids are equal.
    """
    # Sides that are no integers are symbols of a graph for any size: asked, they would be fixed.
    if isinstance(target[0], int) and isinstance(target[1], int) and source == target:
        return table
    table_32, (height, width) = table.float(), source
    if mode == 'bilinear' or (mode == 'bicubic' and not can_cache()):
        maps = table_32.unflatten(1, source).permute(0, 3, 1, 2)
        maps = F.interpolate(maps, size=target, mode=mode, align_corners=False)
        return maps.flatten(2).transpose(1, 2).to(table.dtype)
    # Resizing is linear and separable: two products with cached matrices are ten times as fast.
    make = _geometric if mode == 'geometric' else partial(_resampling, mode)
    down, across = make(source, target, table.device)
    with without_autocast(table.device):
        rows = down @ table_32.reshape(len(table), height, -1)
        cells = across @ rows.unflatten(-1, (width, -1))
    return cells.flatten(1, 2).to(table.dtype)


@cached
def _resampling(mode: str, source: Grid, target: Grid, device: torch.device) -> tuple[Tensor, ...]:
    """Weights of old rows in new ones, ``(new, old)`` for each axis."""
    kernel = dict(_KERNELS[mode])
    sides = (max(target),) * 2 if kernel.pop('square', False) else target
    with without_autocast(device):
        matrices = [
            F.interpolate(torch.eye(old, device=device)[None, None], (side, old), **kernel)[0, 0]
            for old, side in zip(source, sides)
        ]
    return tuple(weights[:new] for weights, new in zip(matrices, target))


@cached
def _geometric(source: Grid, target: Grid, device: torch.device) -> tuple[Tensor, ...]:
    """Compute the weights of :func:`_resampling` by BEiT's rule (ICLR 2022, code): old offsets lie at 0, 1, 1 + q,
    1 + q + q^2, ..., where the farthest old and new ones coincide; new ones are interpolated linearly."""
    tables = []
    for old, new in zip(source, target, strict=True):
        half, reach = old // 2, new // 2
        low, high = 1.01, 1.5
        while high - low > 1e-6:
            middle = (low + high) / 2
            far = (1 - middle**half) / (1 - middle) > reach
            low, high = (low, middle) if far else (middle, high)
        steps = np.cumsum(middle ** np.arange(half))
        offsets, wanted = [*-steps[::-1], 0, *steps], np.arange(-reach, reach + 1)
        weights = [np.interp(wanted, offsets, one_hot) for one_hot in np.eye(old)]
        tables.append(torch.tensor(np.stack(weights, axis=1), dtype=torch.float32, device=device))
    return tuple(tables)


@MODELS.register_module()
class LearnedPosition(PositionEmbedding):
    """Learned absolute position embedding (ViT, DeiT), stored at the pre-training grid.

    The grid part is resized, in float32, to any other grid; prefix rows stay as they are.

    Args:
        embed_dims, grid, num_prefix_tokens, num_tables: As in :class:`PositionEmbedding`.
        resize: ``'bicubic'`` (default; ViT, DeiT, ViT-Adapter), ``'bilinear'`` (PVT), timm's ``'bicubic_antialias'``,
            or NaFlex's: ``'bilinear_antialias'`` (SigLIP 2); ``'bilinear_square'``, ``'bilinear_corners_square'``
            (C-RADIO) and ``'bicubic_antialias_square'``, to the square of the longer side, cut off at the bottom or
            right, so that cells stay square.
        std: Standard deviation of the initial values, a normal distribution truncated at two units. Default 0.02; 0
            for zeros.
        prefix_rows: Whether prefix tokens have rows in the table. False: they get zeros, as in the published DTN-ViT.
            Default True.

    Raises:
        ValueError: If ``resize`` is unknown or ``std`` below 0.

    Shape:
        ``pos_embed``: ``(K, P + H0 * W0, C)``, timm's layout for K = 1; without ``prefix_rows`` ``(K, H0 * W0, C)``.

    Attributes:
        num_prefix_rows: Rows of the table before those of the grid, ``P`` or 0.
    """

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        num_tables: int = 1,
        resize: str = 'bicubic',
        std: float = 0.02,
        prefix_rows: bool = True,
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        self.resize = check_option('resize', resize, RESIZES)
        self.num_prefix_rows = self.num_prefix_tokens if prefix_rows else 0
        rows = self.num_prefix_rows + self.grid[0] * self.grid[1]
        self.pos_embed = nn.Parameter(torch.zeros(self.num_tables, rows, self.embed_dims))
        if check_number('std', std, minimum=0):
            nn.init.trunc_normal_(self.pos_embed, std=std, a=-2, b=2)

    def forward(self, grid: Grid) -> Tensor:
        """Return ``(K, P + H * W, C)`` for ``grid = (H, W)``."""
        table: Tensor = self.pos_embed
        height, width = grid
        fixed = isinstance(height, int) and isinstance(width, int)
        if not fixed or (height, width) != self.grid:
            count = self.num_prefix_rows
            parts = table.split([count, table.shape[1] - count], dim=1) if count else (table,)
            cells = resize_table(parts[-1], self.grid, (height, width), self.resize)
            table = torch.cat([parts[0], cells], dim=1) if count else cells
        absent = self.num_prefix_tokens - self.num_prefix_rows
        return F.pad(table, (0, 0, absent, 0)) if absent else table


@MODELS.register_module()
class FactorizedPosition(PositionEmbedding):
    """The sum of an embedding of the token's row and one of its column (NaViT, NeurIPS 2023, section 2.1; timm's
    NaFlex), both learned. Rows of prefix tokens are zero.

    Both tables are resized linearly, in float32, to any other grid.

    Args:
        embed_dims, grid, num_prefix_tokens, num_tables: As in :class:`PositionEmbedding`.
        std: Standard deviation of the initial values, a normal distribution truncated at two units. Default 0.02.
        square: Resize both tables to the longer side and leave off what is beyond the shorter one, so that cells stay
            square. Default False.

    Raises:
        ValueError: If ``std`` is below 0.

    Shape:
        ``rows``: ``(K, H0, C)``; ``columns``: ``(K, W0, C)``.
    """

    def __init__(
        self,
        embed_dims: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        num_tables: int = 1,
        std: float = 0.02,
        square: bool = False,
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        self.square = square
        self.rows, self.columns = (
            nn.Parameter(torch.zeros(self.num_tables, side, self.embed_dims)) for side in self.grid
        )
        if check_number('std', std, minimum=0):
            for table in (self.rows, self.columns):
                nn.init.trunc_normal_(table, std=std, a=-2, b=2)

    def forward(self, grid: Grid) -> Tensor:
        """Return ``(K, P + H * W, C)`` for ``grid = (H, W)``."""
        height, width = grid
        longer = max(height, width)
        rows, columns = (
            resize_table(table, (own, 1), (longer if self.square else side, 1), 'bilinear')[
                :, :side
            ]
            for table, own, side in zip((self.rows, self.columns), self.grid, (height, width))
        )
        cells = (rows.unsqueeze(2) + columns.unsqueeze(1)).flatten(1, 2)
        return F.pad(cells, (0, 0, self.num_prefix_tokens, 0))


@MODELS.register_module()
class MergedPosition(PositionEmbedding):
    """The carried position of the stage before, merged to the grid of this stage as tokens are; no parameters.

    This continues LaPE's chain :math:`\\omega_{l+1} = LN_l(\\omega_l)` (ICCV 2023, eq. 8-11) across stages, which the
    paper leaves open. Default joining carries nothing: its position is in the tokens.

    Args:
        embed_dims, grid: As in :class:`PositionEmbedding`.
        num_prefix_tokens: Must be 0.
        num_tables: Must be 1: ``mmlape.UnsharedJoining`` needs an embedding in every stage.

    Raises:
        ValueError: If there are prefix tokens or several tables.
    """

    def __init__(
        self, embed_dims: int, grid: Grid, num_prefix_tokens: int = 0, num_tables: int = 1
    ) -> None:
        super().__init__(embed_dims, grid, num_prefix_tokens, num_tables)
        if num_prefix_tokens or num_tables > 1:
            raise ValueError(
                'the position of the stage before has one table and no rows for prefix tokens, asked for '
                f'num_tables={num_tables} and num_prefix_tokens={num_prefix_tokens}: '
                'give a list with a position for every stage'
            )

    def forward(self, grid: Grid) -> Tensor:
        """Raise ValueError: :class:`~mmlape.position.JoinedPosition` merges what the stage before carries."""
        raise ValueError('mmlape.MergedPosition has no embedding: its network merges one')
