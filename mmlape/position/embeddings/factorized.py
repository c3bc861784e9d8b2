"""A row of a table for every row of the grid, and one of another for every column."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_number
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .base import PositionEmbedding, resize_table


@MODELS.register_module()
class FactorizedPosition(PositionEmbedding):
    """The sum of a learned row of the token's height and one of its width (NaViT, NeurIPS 2023, section 2.1; timm's
    NaFlex). Prefix tokens have none.

    Both tables are resized linearly, in float32, to any other grid.

    Args:
        embed_dims: Channels ``C``.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: Prefix rows ``P``, of zeros. Default 0.
        num_tables: Tables ``K``. Default 1.
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
