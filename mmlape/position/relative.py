"""Position in the attention itself: contract of such layers, and the relative position bias."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_bool, check_grid, check_positive_int
from mmlape.kept import kept
from mmlape.registry import MODELS

from .cache import PlanKeeper
from .embedding import Grid, resize_table


class AttentionPosition(PlanKeeper, ABC):
    """What a position does to queries, keys, values and scores of one attention layer.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads of the attention.
        grid: Pre-training grid ``(H0, W0)`` of the image in tokens.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Of a layer that attends in windows. Default None.

    Attributes:
        per_window: True for a position that knows offsets alone: a layer with windows calls it for each window, with
            the window as the grid, and prefix tokens among the keys only. False for one that knows places in the image:
            it is called once, with all tokens, before windows are cut, and adds nothing to the scores itself.
        grid: The grid that it is built for: the window's for a position per window, else the image's.
    """

    per_window = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: Grid | None = None,
    ) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.num_heads = check_positive_int('num_heads', num_heads)
        if embed_dims % num_heads:
            raise ValueError(
                f'num_heads must divide embed_dims, got num_heads={num_heads}, embed_dims={embed_dims}'
            )
        self.num_prefix_tokens = check_positive_int(
            'num_prefix_tokens', num_prefix_tokens, minimum=0
        )
        self.window_size = None if window_size is None else check_grid('window_size', window_size)
        self.grid = check_grid('grid', grid)
        if self.per_window and self.window_size is not None:
            self.grid = self.window_size

    @abstractmethod
    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, grid: Grid
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Apply to ``(B, heads, P + H * W, C / heads)`` each; the P of queries and of keys may differ.

        Returns:
            Queries and keys, which may have become wider (the scores' factor stays ``(C / heads) ** -0.5``), values of
            the same width, and what is added to the scores: ``(1, heads, queries, keys)`` or None.
        """

    @property
    def has_scores(self) -> bool:
        """Whether :meth:`scores` has an answer. Default True."""
        return True

    @abstractmethod
    def scores(self, grid: Grid) -> Tensor:
        """What it adds to the softmax's argument whatever the image, ``(1, heads, P + H * W, P + H * W)``.

        Raises:
            ValueError: If what it adds depends on the image.
        """


@MODELS.register_module()
class RelativePositionBias(AttentionPosition):
    """A learned bias on the scores for every offset between two cells and head (Swin, ICCV 2021).

    Prefix tokens are left out: their scores get no bias. Another grid than the pre-training grid gets the table
    resized bicubically, in float32.

    Args:
        embed_dims: Channels ``C``; accepted for uniformity.
        num_heads: Heads.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: Prefix tokens ``P``; they have no offsets. Default 0.
        window_size: Of a layer that attends in windows; it takes the place of ``grid``. Default None.
        layer_norm: LaPE's form: a LayerNorm over the key axis of the bias (arXiv v1, appendix B). Its weight and bias
            have one value per key, and are resized with the grid. Default False.
        eps: Added to its variance. Default 1e-5, as in the published code.

    Shape:
        ``relative_position_bias_table``: ``((2 * H0 - 1) * (2 * W0 - 1), heads)``, offsets query - key in raster
        order.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: Grid | None = None,
        layer_norm: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        height, width = self.grid
        table = torch.empty((2 * height - 1) * (2 * width - 1), self.num_heads)
        self.relative_position_bias_table = nn.Parameter(nn.init.trunc_normal_(table, std=0.02))
        normed = check_bool('layer_norm', layer_norm)
        self.pe_norm = nn.LayerNorm(height * width, eps=eps) if normed else None

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, grid: Grid
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Leave queries, keys and values as they are; return the bias for the scores."""
        grid = tuple(grid)
        if self.window_size is None:
            bias = self.bias(grid)  # N x N for every layer, head and grid is too much to keep
        else:
            bias = self.plans.get(grid, lambda: self.bias(grid))
        num_cells = grid[0] * grid[1]
        prefix = (key.shape[2] - num_cells, 0, query.shape[2] - num_cells, 0)
        return query, key, value, F.pad(bias, prefix).to(query.dtype)

    def scores(self, grid: Grid) -> Tensor:
        """The bias, ``(1, heads, P + H * W, P + H * W)``; zero for prefix tokens."""
        return F.pad(self.bias(tuple(grid)), (self.num_prefix_tokens, 0) * 2)

    def bias(self, grid: Grid) -> Tensor:
        """``(1, heads, H * W, H * W)``, queries first."""
        table = self.table(grid)
        bias = table[relative_index(grid, table.device)].permute(2, 0, 1)
        if self.pe_norm is not None:
            weight, shift = (
                resize_table(parameter.view(1, -1, 1), self.grid, grid).flatten()
                for parameter in (self.pe_norm.weight, self.pe_norm.bias)
            )
            bias = F.layer_norm(bias, weight.shape, weight, shift, self.pe_norm.eps)
        return bias.unsqueeze(0)

    def table(self, grid: Grid) -> Tensor:
        """The table for ``grid = (H, W)``: ``((2 * H - 1) * (2 * W - 1), heads)``."""
        source, target = (tuple(2 * side - 1 for side in size) for size in (self.grid, grid))
        return resize_table(self.relative_position_bias_table[None], source, target)[0]


@kept
def relative_index(grid: Grid, device: torch.device) -> Tensor:
    """Row of the table for each pair of query and key cell, ``(H * W, H * W)``, int64."""
    height, width = grid
    ys = torch.arange(height, device=device).repeat_interleave(width)
    xs = torch.arange(width, device=device).repeat(height)
    dy = ys[:, None] - ys[None] + height - 1
    dx = xs[:, None] - xs[None] + width - 1
    return dy * (2 * width - 1) + dx
