"""Tokens made of an image by strided convolutions (LeViT)."""

from __future__ import annotations

from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .patch_embed import Stem, check_image, pad_to_multiple
from .spatial_prior import build_map_norm
from .strided_conv import StridedConv2d


@MODELS.register_module()
class ConvStem(Stem):
    """3 x 3 convolutions of stride 2, each but the last with a batch norm and a hardswish, the last with a token norm
    (LeViT, ICCV 2021, section 4.2). Channels double from one to the next; the image is padded inside.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out, a multiple of ``2 ** (num_convs - 1)``. Default 128.
        num_convs: Convolutions; the stride is ``2 ** num_convs``. Default 4.
        norm_cfg: Norm of the maps between, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.

    Raises:
        ValueError: If a value is out of range.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 128,
        num_convs: int = 4,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        check_positive_int('num_convs', num_convs)
        self.stride: Grid = (2**num_convs, 2**num_convs)
        if check_positive_int('embed_dims', embed_dims) % 2 ** (num_convs - 1):
            raise ValueError(
                f'embed_dims must be a multiple of {2 ** (num_convs - 1)} for {num_convs} convolutions, '
                f'got {embed_dims}'
            )
        widths = [in_channels, *(embed_dims // 2**step for step in reversed(range(num_convs)))]
        self.convs = nn.ModuleList(
            StridedConv2d(before, after, 3, stride=2, padding=1, bias=False)
            for before, after in pairwise(widths)
        )
        norm_cfg = norm_cfg or dict(type='BN')
        self.norms = nn.ModuleList(build_map_norm(norm_cfg, width) for width in widths[1:-1])
        # Of tokens, of which there may be a single one.
        self.norms.append(build_token_norm(dict(type='mmlape.TokenBN'), embed_dims))

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, in_channels, height, width)`` to tokens ``(B, H * W, C)`` and their layout, see :meth:`grid_of`.

        Raises:
            ValueError: If the image has another shape.
        """
        check_image(image, self.in_channels)
        maps = pad_to_multiple(image, self.stride)
        for conv, norm in zip(self.convs[:-1], self.norms[:-1]):
            maps = F.hardswish(norm(conv(maps)))
        maps = self.convs[-1](maps)
        layout = Layout((maps.shape[2], maps.shape[3]))
        return self.norms[-1](maps.flatten(2).transpose(1, 2), layout), layout
