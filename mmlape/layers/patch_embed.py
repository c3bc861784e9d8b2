"""From an image of any size to tokens on a grid."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int


def pad_to_multiple(image: Tensor, multiple: tuple[int, int]) -> Tensor:
    """Pad ``(B, C, H, W)`` with zeros at the bottom and right to multiples of ``(h, w)``."""
    height, width = image.shape[-2:]
    return F.pad(image, (0, -width % multiple[1], 0, -height % multiple[0]))


class PatchEmbed(nn.Module):
    """Non-overlapping patches, each projected to a token; the image is padded inside to whole patches.

    Args:
        in_channels: Image channels. Default 3.
        embed_dims: Channels ``C``. Default 192.
        patch_size: Patch height and width in pixels, one integer or a pair. Default 16.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        patch_size: int | tuple[int, int] = 16,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        self.patch_size = check_grid('patch_size', patch_size)
        self.proj = nn.Conv2d(self.in_channels, embed_dims, self.patch_size, stride=self.patch_size)

    def forward(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens ``(B, H * W, C)`` and their grid ``(H, W)``, with ``H = ceil(height / patch height)``.

        Raises:
            ValueError: If ``image`` is not ``(B, in_channels, height, width)`` with sides of at least 1 pixel.
        """
        if image.ndim != 4 or image.shape[1] != self.in_channels or 0 in image.shape[-2:]:
            raise ValueError(
                f'image must have the shape (batch, {self.in_channels}, height, width) '
                f'with sides of at least 1 pixel, got {tuple(image.shape)}'
            )
        maps = self.proj(pad_to_multiple(image, self.patch_size))
        height, width = maps.shape[-2:]
        return maps.flatten(2).transpose(1, 2), (height, width)
