"""What every position embedding shares: its contract, and the resizing of a stored table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.autocast import without_autocast
from mmlape.checks import check_grid, check_positive_int
from mmlape.kept import kept, may_keep
from mmlape.layout import Grid


class PositionEmbedding(nn.Module, ABC):
    """Answers where each token of a grid is.

    Args:
        embed_dims: Channels ``C``.
        grid: Grid ``(H0, W0)`` in tokens that the network is built (pre-trained) for.
        num_prefix_tokens: Rows ``P`` for tokens without a place (class, distillation). They come first. Default 0.
        num_tables: Embeddings ``K`` that are kept side by side; a joining method asks for more than one where every
            layer has its own. Default 1.

    Raises:
        ValueError: If a size is not a positive integer.
    """

    # Shrinking where something is means nothing.
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


# How a table is resized: by which kernel, over how much where it shrinks, whether corners stay corners, and whether it
# is made for the square of the longer side, of which the rest is cut off at the bottom or right.
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
        mode: ``'bicubic'`` (default), ``'bilinear'``, ``'bicubic_antialias'``, which is timm's, or another of
            :class:`~mmlape.position.LearnedPosition`; or, for a table of offsets, ``'geometric'``, which is BEiT's:
            near offsets keep what they have.

    Returns:
        ``(K, H * W, C)`` in the dtype of ``table``; ``table`` itself where the grids are equal.
    """
    if source == target:
        return table
    table_32, (height, width) = table.float(), source
    if mode == 'bilinear' or (mode == 'bicubic' and not may_keep()):
        maps = table_32.unflatten(1, source).permute(0, 3, 1, 2)
        maps = F.interpolate(maps, size=target, mode=mode, align_corners=False)
        return maps.flatten(2).transpose(1, 2).to(table.dtype)
    # Resizing treats axes one after the other and is linear: two products with matrices that are kept are ten times as
    # fast.
    make = _geometric if mode == 'geometric' else partial(_resampling, mode)
    down, across = make(source, target, table.device)
    with without_autocast(table.device):
        rows = down @ table_32.reshape(len(table), height, -1)
        cells = across @ rows.view(len(table), target[0], width, -1)
    return cells.flatten(1, 2).to(table.dtype)


@kept
def _resampling(mode: str, source: Grid, target: Grid, device: torch.device) -> tuple[Tensor, ...]:
    """For each axis ``(new, old)``: how much old rows count in new ones."""
    kernel = dict(_KERNELS[mode])
    made = (max(target),) * 2 if kernel.pop('square', False) else target
    with without_autocast(device):
        return tuple(
            F.interpolate(torch.eye(old, device=device)[None, None], (whole, old), **kernel)[
                0, 0, :new
            ]
            for old, whole, new in zip(source, made, target, strict=True)
        )


@kept
def _geometric(source: Grid, target: Grid, device: torch.device) -> tuple[Tensor, ...]:
    """For each axis ``(new, old)``: old offsets are taken to lie at 0, 1, 1 + q, 1 + q + q^2, ..., with q such that the
    farthest are the new farthest; new ones are interpolated linearly (BEiT, ICLR 2022, code)."""
    tables = []
    for old, new in zip(source, target, strict=True):
        half, reach = old // 2, new // 2
        low, high = 1.01, 1.5
        while high - low > 1e-6:
            middle = (low + high) / 2
            far = (1 - middle**half) / (1 - middle) > reach
            low, high = (low, middle) if far else (middle, high)
        steps = torch.tensor([middle**i for i in range(half)], dtype=torch.float64).cumsum(0)
        places = torch.cat([-steps.flip(0), steps.new_zeros(1), steps])
        wanted = torch.arange(-reach, reach + 1).to(places).clamp(places[0], places[-1])
        after = torch.searchsorted(places, wanted).clamp(1, max(old - 1, 1)) if half else None
        table = torch.ones(new, old) if after is None else torch.zeros(new, old)
        if after is not None:
            share = (wanted - places[after - 1]) / (places[after] - places[after - 1])
            rows = torch.arange(new)
            table[rows, after - 1], table[rows, after] = (1 - share).float(), share.float()
        tables.append(table.to(device))
    return tuple(tables)
