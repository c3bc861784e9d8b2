"""DTN (ICLR 2022, eq. 4-7) with its T x T map, as the published module computes it, for comparison.

Written from the paper, and checked against golden vectors in ``tests/norm/test_dtn_golden.py``.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class DenseDTN(nn.Module):
    """DTN for one square grid, with one T x T softmax map per head.

    Args:
        num_features: Channels ``C``.
        num_heads: Heads.
        side: Side of the square grid in tokens.
        pool: The map is built between cells of ``pool x pool`` tokens.
        variance_only: The mean is that of the token alone.
        map_per_image: Build the map once per image of the batch, as published (default), or once per batch.
        eps: Added to the mean square of a head and to the variance.
    """

    def __init__(
        self,
        num_features: int,
        num_heads: int,
        side: int,
        pool: int = 1,
        variance_only: bool = False,
        map_per_image: bool = True,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.num_heads, self.side, self.pool, self.eps = num_heads, side, pool, eps
        self.map_per_image = map_per_image
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        if not variance_only:
            self.mean_norm_weight = nn.Parameter(torch.zeros(num_heads))
        self.var_norm_weight = nn.Parameter(torch.zeros(num_heads))
        self.pos_proj = nn.Linear(3, num_heads)
        self.register_buffer('offsets', _offsets(side // pool), persistent=False)

    def forward(self, tokens: Tensor, grid: tuple[int, int] | None = None) -> Tensor:
        """Normalise ``(B, T, C)``."""
        batch, num_tokens, channels = tokens.shape
        x = tokens.view(batch, num_tokens, self.num_heads, -1)
        x = x / (x.pow(2).mean(dim=-1, keepdim=True) + self.eps).sqrt()
        mean = x.mean(dim=(2, 3), keepdim=True)
        var = x.flatten(2).var(dim=-1)[..., None, None]

        weights = self.positional_map(batch)
        cells = self._pooled(x).transpose(1, 2)
        cells_mean = weights @ cells
        cells_var = weights @ cells.square() - cells_mean.square()

        ratio = self.var_norm_weight.sigmoid()[:, None]
        var = ratio * var + (1 - ratio) * self._spread(cells_var.transpose(1, 2))
        if hasattr(self, 'mean_norm_weight'):
            ratio = self.mean_norm_weight.sigmoid()[:, None]
            mean = ratio * mean + (1 - ratio) * self._spread(cells_mean.transpose(1, 2))
        x = (x - mean) / (var + self.eps).sqrt()
        return x.reshape(batch, num_tokens, channels) * self.weight + self.bias

    def positional_map(self, batch: int) -> Tensor:
        """``(B, heads, T, T)``, or ``(1, heads, T, T)`` where one map serves the batch."""
        offsets = self.offsets.expand(batch if self.map_per_image else 1, -1, -1, -1)
        return self.pos_proj(offsets).permute(0, 3, 1, 2).softmax(dim=-1)

    def _pooled(self, x: Tensor) -> Tensor:
        if self.pool == 1:
            return x
        maps = x.flatten(2).unflatten(1, (self.side, self.side)).permute(0, 3, 1, 2)
        cells = F.avg_pool2d(maps, self.pool).permute(0, 2, 3, 1)
        return cells.flatten(1, 2).unflatten(2, (self.num_heads, -1))

    def _spread(self, cells: Tensor) -> Tensor:
        if self.pool == 1:
            return cells
        side = self.side // self.pool
        maps = cells.unflatten(1, (side, side))
        maps = maps.repeat_interleave(self.pool, dim=1).repeat_interleave(self.pool, dim=2)
        return maps.flatten(1, 2)


def _offsets(side: int) -> Tensor:
    """(dx, dy, dx^2 + dy^2) from token j to token i, ``(T, T, 3)``."""
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing='ij')
    dx, dy = (axis.flatten()[:, None] - axis.flatten()[None] for axis in (x, y))
    return torch.stack([dx, dy, dx**2 + dy**2], dim=-1).float()
