"""A strided convolution that is right on narrow maps too."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


def _in_bfloat16(maps: Tensor) -> bool:
    if torch.is_autocast_enabled('cpu'):
        return torch.get_autocast_dtype('cpu') == torch.bfloat16
    return maps.dtype == torch.bfloat16
