"""Patches of a map that a convolution has made of the image (CeiT)."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .patch_embed import PatchEmbed, Stem, check_image, pad_to_multiple
from .spatial_prior import build_map_norm


@MODELS.register_module()
class ImageToTokens(Stem):
    """Image-to-Tokens (CeiT, ICCV 2021, section 3.1): a 7 x 7 convolution of stride 2, a batch norm and a 3 x 3 max
    pooling of stride 2 make a map of stride 4, whose patches are projected.

    The image is padded inside, so that every pixel of any size is covered.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        patch_size: Patch height and width in pixels of the image, multiples of 4, one integer or a pair. Default 16.
        hidden_channels: Channels of the map. Default 64.
        norm_cfg: Norm of the map, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.

    Raises:
        ValueError: If a size is out of range.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        patch_size: int | Grid = 16,
        hidden_channels: int = 64,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        check_positive_int('hidden_channels', hidden_channels)
        self.patch_size = self.stride = check_grid('patch_size', patch_size)
        height, width = self.patch_size
        if height % 4 or width % 4:
            raise ValueError(f'patch_size must be a multiple of 4, got {patch_size}')
        self.conv = nn.Conv2d(in_channels, hidden_channels, 7, stride=2, padding=3, bias=False)
        self.norm = build_map_norm(norm_cfg or dict(type='BN'), hidden_channels)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.patches = PatchEmbed(hidden_channels, embed_dims, (height // 4, width // 4))

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, in_channels, height, width)`` to tokens ``(B, H * W, C)`` and their layout, see :meth:`grid_of`.

        Raises:
            ValueError: If the image has another shape.
        """
        check_image(image, self.in_channels)
        maps = self.conv(pad_to_multiple(image, self.stride))
        return self.patches(self.pool(self.norm(maps)))
