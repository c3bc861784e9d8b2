"""Strided convolutions: right on narrow maps too, and matrix products where patches lie side by side."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.ops import product


def channels_last(maps: Tensor) -> Tensor:
    """Maps ``(B, C, H, W)`` with the channels of a cell side by side in memory, where that saves time: in eager mode on
    a CPU. Elsewhere as they are."""
    return maps.contiguous(memory_format=torch.channels_last) if _eager_on_cpu(maps) else maps


class StridedConv2d(nn.Conv2d):
    """PyTorch's, where PyTorch computes it.

    On a CPU with AMX, in bfloat16, the result of a strided convolution that has one column stays what was in memory
    before (torch 2.11). There a second column is made, and cut off. Arguments and parameters are ``nn.Conv2d``'s.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C', H', W')`` to ``(B, C, H, W)``."""
        if maps.is_cpu and _in_bfloat16(maps):
            room = maps.shape[-1] + 2 * int(self.padding[1]) - self.kernel_size[1]
            if room < self.stride[1]:
                return super().forward(F.pad(maps, (0, self.stride[1])))[..., :1]
        return super().forward(maps)


class PatchConv2d(StridedConv2d):
    """A convolution of patches that lie side by side, 1 x 1 among them.

    On a CPU, maps that are views of tokens are cut into patches and multiplied as such, which takes PVT's spatial
    reduction a third to two thirds of a convolution's time; the result is a view of tokens again.

    Args:
        in_channels: Channels in.
        out_channels: Channels out.
        patch_size: Side of a patch in cells.
    """

    def __init__(self, in_channels: int, out_channels: int, patch_size: int) -> None:
        super().__init__(in_channels, out_channels, patch_size, stride=patch_size)

    def forward(self, maps: Tensor) -> Tensor:
        """``(B, C', H', W')`` to ``(B, C, H, W)``."""
        side = self.kernel_size[0]
        whole = not (maps.shape[2] % side or maps.shape[3] % side)
        tokens = whole and maps.is_contiguous(memory_format=torch.channels_last)
        if not tokens or not _eager_on_cpu(maps):
            return super().forward(maps)
        cells = maps.permute(0, 2, 3, 1).unflatten(2, (-1, side)).unflatten(1, (-1, side))
        weight = self.weight.permute(0, 2, 3, 1).flatten(1)
        return product(cells.transpose(2, 3).flatten(3), weight, self.bias).permute(0, 3, 1, 2)


def _eager_on_cpu(maps: Tensor) -> bool:
    """Whether a graph would not hold what is computed now."""
    return maps.is_cpu and not (torch.compiler.is_compiling() or torch.jit.is_tracing())


def _in_bfloat16(maps: Tensor) -> bool:
    if torch.is_autocast_enabled('cpu'):
        return torch.get_autocast_dtype('cpu') == torch.bfloat16
    return maps.dtype == torch.bfloat16
