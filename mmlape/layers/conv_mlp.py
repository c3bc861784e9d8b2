"""A feed-forward network that mixes neighbours by a depthwise convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout, maps_of
from mmlape.registry import MODELS

from .dropout import build_dropout
from .gelu_linear import gelu_linear
from .linear import Linear


@MODELS.register_module()
class ConvMlp(nn.Module):
    """Linear, 3 x 3 depthwise convolution on the grid, GELU, linear (PVTv2, CVMJ 2022), where zero padding tells tokens
    where they are; on every level of a pyramid of tokens in ViT-Adapter's extractors (ICLR 2023, eq. 3).

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
        check_positive_int('embed_dims', embed_dims)
        check_positive_int('hidden channels of the convolutional feed-forward network', hidden_dims)
        self.extra_relu = extra_relu
        self.fc1 = Linear(embed_dims, hidden_dims)
        conv = nn.Conv2d(hidden_dims, hidden_dims, 3, padding=1, groups=hidden_dims)
        self.dwconv = nn.ModuleDict({'dwconv': conv})
        self.fc2 = Linear(hidden_dims, embed_dims)
        self.act = nn.GELU()
        self.drop = build_dropout('drop_rate', drop_rate)

    def forward(self, tokens: Tensor, layout: Layout | Grid | Sequence[Grid]) -> Tensor:
        """``(B, N, C)`` to the same shape.

        Args:
            tokens: ``(B, H * W, C)``, or those of the levels of a pyramid, one after the other.
            layout: Where they lie, or (height, width) of each level. A mask does not stop what is padded from reaching
                its neighbours.

        Raises:
            ValueError: If there are prefix tokens, which have no neighbours.
        """
        hidden = self.fc1(tokens)
        if self.extra_relu:
            hidden = F.relu(hidden)
        if not isinstance(layout, Layout) and isinstance(layout[0], Sequence):
            shapes = cast('Sequence[Grid]', layout)
            levels = hidden.split([height * width for height, width in shapes], dim=1)
            mixed = torch.cat([self._mix(*level) for level in zip(levels, shapes)], dim=1)
        else:
            layout = Layout.of(tokens, cast('Layout | Grid', layout))
            if layout.num_prefix:
                raise ValueError(f'ConvMlp takes no prefix tokens, got {layout.num_prefix}')
            mixed = self._mix(hidden, layout.grid)
        if isinstance(self.drop, nn.Identity):
            return gelu_linear(self.act, mixed, self.fc2)
        return self.drop(self.fc2(self.drop(self.act(mixed))))

    def _mix(self, hidden: Tensor, grid: Grid) -> Tensor:
        maps = self.dwconv['dwconv'](maps_of(hidden, grid))
        return maps.flatten(2).transpose(1, 2)
