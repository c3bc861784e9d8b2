"""A table of one learned row per token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_number, check_option
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .base import RESIZES, PositionEmbedding, resize_table


@MODELS.register_module()
class LearnedPosition(PositionEmbedding):
    """Learned absolute position embedding (ViT, DeiT), stored at the pre-training grid.

    The grid part is resized, in float32, to any other grid; prefix rows stay as they are. Initial values are drawn from
    a normal distribution truncated at two units.

    Args:
        embed_dims: Channels ``C``.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: Prefix rows ``P``. Default 0.
        num_tables: Tables ``K``. Default 1.
        resize: ``'bicubic'`` (default; ViT, DeiT, ViT-Adapter), ``'bilinear'`` (PVT), timm's ``'bicubic_antialias'``,
            or NaFlex's: ``'bilinear_antialias'`` (SigLIP 2); ``'bilinear_square'``, ``'bilinear_corners_square'``
            (C-RADIO) and ``'bicubic_antialias_square'``, to the square of the longer side, cut off at the bottom or
            right, so that cells stay square.
        std: Standard deviation of the initial values. Default 0.02; 0 for zeros, which at first add nothing to a
            network that was trained without such a table.
        prefix_rows: Whether prefix tokens have rows. False: theirs are zero and in no table, as in the published
            DTN-ViT. Default True.

    Raises:
        ValueError: If ``resize`` is none of them, or ``std`` is below 0.

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
        if (height, width) != self.grid:
            prefix, cells = table.tensor_split([self.num_prefix_rows], dim=1)
            cells = resize_table(cells, self.grid, (height, width), self.resize)
            table = torch.cat([prefix, cells], dim=1)
        absent = self.num_prefix_tokens - self.num_prefix_rows
        return F.pad(table, (0, 0, absent, 0)) if absent else table
