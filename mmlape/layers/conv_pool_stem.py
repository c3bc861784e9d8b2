"""A convolutional stem: tokens of overlapping neighbourhoods, pooled."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .patch_embed import Stem, check_image
from .strided_conv import StridedConv2d


@MODELS.register_module()
class ConvPoolStem(Stem):
    """Convolutions without bias, each followed by ReLU and a 3 x 3 max pooling of stride 2 (Compact Transformers, arXiv
    2021, section 3.3: the "convolutional tokenizer" of CCT).

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        kernel_size: Sides of the kernels in pixels, odd, one integer or (height, width). Default 3.
        stride: Strides of the convolutions, one integer or a pair. Default 1.
        num_convs: Convolutions. Default 1.
        hidden_dims: Channels between them. Default 64, as published.

    Raises:
        ValueError: If a size is out of range, or a kernel's side is even.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        kernel_size: int | Grid = 3,
        stride: int | Grid = 1,
        num_convs: int = 1,
        hidden_dims: int = 64,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        kernel, steps = check_grid('kernel_size', kernel_size), check_grid('stride', stride)
        if not kernel[0] % 2 or not kernel[1] % 2:
            raise ValueError(f'kernel_size must be odd, got {kernel_size}')
        check_positive_int('num_convs', num_convs)
        check_positive_int('hidden_dims', hidden_dims)
        between = [hidden_dims] * (num_convs - 1)
        channels = [in_channels, *between, check_positive_int('embed_dims', embed_dims)]
        self.stride: Grid = ((2 * steps[0]) ** num_convs, (2 * steps[1]) ** num_convs)
        self.convs = nn.ModuleList(
            StridedConv2d(
                before,
                after,
                kernel,
                stride=steps,
                padding=(kernel[0] // 2, kernel[1] // 2),
                bias=False,
            )
            for before, after in pairwise(channels)
        )

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, in_channels, height, width)`` to tokens ``(B, H * W, C)`` and their layout, see :meth:`grid_of`.

        Raises:
            ValueError: If ``image`` has another shape.
        """
        check_image(image, self.in_channels)
        maps = image
        for conv in self.convs:
            maps = F.max_pool2d(F.relu(conv(maps)), 3, stride=2, padding=1)
        return maps.flatten(2).transpose(1, 2), Layout((maps.shape[2], maps.shape[3]))
