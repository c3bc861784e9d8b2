"""PVTv2's feed-forward network: a depthwise convolution between its two layers tells tokens where they are."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_bool, check_positive_int, check_rate


class ConvMlp(nn.Module):
    """Linear, 3 x 3 depthwise convolution on the grid, GELU, linear (PVTv2, CVMJ 2022).

    Parameter names are the published ones: ``fc1``, ``dwconv.dwconv``, ``fc2``.

    Args:
        embed_dims: Channels ``C`` in and out.
        hidden_dims: Channels between.
        drop_rate: Dropout after the activation and at the end. Default 0.
        extra_relu: ReLU before the convolution, as published with linear attention. Default False.
    """

    def __init__(
        self,
        embed_dims: int,
        hidden_dims: int,
        drop_rate: float = 0.0,
        extra_relu: bool = False,
    ) -> None:
        super().__init__()
        check_positive_int('hidden channels of the feed-forward network', hidden_dims)
        self.extra_relu = check_bool('extra_relu', extra_relu)
        self.fc1 = nn.Linear(embed_dims, hidden_dims)
        conv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.dwconv = nn.ModuleDict({'dwconv': conv})
        self.fc2 = nn.Linear(hidden_dims, embed_dims)
        self.drop = nn.Dropout(check_rate('drop_rate', drop_rate))

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """``(B, H * W, C)`` to the same shape, ``grid = (H, W)``."""
        hidden = self.fc1(tokens)
        if self.extra_relu:
            hidden = F.relu(hidden)
        maps = self.dwconv['dwconv'](hidden.transpose(1, 2).unflatten(2, grid))
        hidden = self.drop(F.gelu(maps.flatten(2).transpose(1, 2)))
        return self.drop(self.fc2(hidden))
