"""The relative position bias as a function that is learned, in place of a table."""

from __future__ import annotations

from typing import cast

import timm.layers
import torch
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.kept import kept
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .relative_bias import OffsetBias, SharedOffsetBias


@MODELS.register_module()
class RelativePositionMlp(OffsetBias):
    """The bias on the scores is what a small network makes of the offset between two cells, in log-spaced coordinates
    ``sign(d) log(1 + |d|)`` (Swin V2, CVPR 2022, section 3.3, in timm's form). Any grid is served; prefix tokens get no
    bias.

    Args:
        embed_dims: Channels ``C``; accepted for uniformity.
        num_heads: Heads.
        grid: Pre-training grid; accepted for uniformity.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Accepted for uniformity.
        hidden_dims: Hidden channels of the network. Default 128.

    Raises:
        ValueError: If a size is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        hidden_dims: int = 128,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        check_positive_int('hidden_dims', hidden_dims)
        self.mlp = timm.layers.Mlp(2, hidden_dims, self.num_heads, nn.ReLU, drop=(0.125, 0.0))
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(cast(Tensor, layer.bias))

    def table(self, grid: Grid) -> Tensor:
        """Of all offsets on ``grid = (H, W)``, ``((2 * H - 1) * (2 * W - 1), heads)``."""
        weight = self.mlp.fc1.weight
        return self.mlp(_log_offsets(grid, weight.device).to(weight.dtype))


@MODELS.register_module()
class SharedRelativePositionMlp(SharedOffsetBias, RelativePositionMlp):
    """:class:`RelativePositionMlp`, the same for all layers: the network runs once per pass, and again in layers with
    windows, for theirs."""


@kept
def _log_offsets(grid: Grid, device: torch.device) -> Tensor:
    """``((2 * H - 1) * (2 * W - 1), 2)``, by rows and by columns."""
    axes = []
    for side in grid:
        offsets = torch.arange(1 - side, side, device=device, dtype=torch.float32)
        axes.append(offsets.sign() * offsets.abs().log1p())
    return torch.cartesian_prod(*axes)
