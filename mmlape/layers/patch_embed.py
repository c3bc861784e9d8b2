"""From an image, or the map of the stage before, to tokens on a grid."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

from .strided_conv import StridedConv2d


def pad_to_multiple(image: Tensor, multiple: Grid) -> Tensor:
    """Pad ``(B, C, H, W)`` with zeros at the bottom and right to multiples of ``(h, w)``."""
    height, width = image.shape[-2:]
    right, bottom = -width % multiple[1], -height % multiple[0]
    return F.pad(image, (0, right, 0, bottom)) if right or bottom else image


def check_image(image: Tensor, in_channels: int, what: str = 'image') -> None:
    """Raise ValueError unless ``image`` is ``(B, in_channels, height, width)`` with sides of at least 1 pixel."""
    if image.ndim != 4 or image.shape[1] != in_channels or 0 in image.shape[-2:]:
        raise ValueError(
            f'{what} must have the shape (batch, {in_channels}, height, width) '
            f'with sides of at least 1 pixel, got {tuple(image.shape)}'
        )


class Stem(nn.Module, ABC):
    """What makes the tokens of a stage, of an image or of the map of the stage before.

    Attributes:
        stride: Pixels, or cells, from one token to the next, ``(vertical, horizontal)``.
        needs_grid: Whether it takes ``grid``: the sides, at the pre-training image size, of what it is given. Default
            False.
    """

    stride: Grid
    needs_grid: ClassVar[bool] = False

    @abstractmethod
    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """``(B, C', height, width)`` to tokens ``(B, H * W, C)`` and their layout, on the grid of :meth:`grid_of`."""

    def grid_of(self, size: Grid) -> Grid:
        """The grid of an image of ``size = (height, width)``: ``ceil(height / stride)``, ``ceil(width / stride)``."""
        return -(-size[0] // self.stride[0]), -(-size[1] // self.stride[1])


@MODELS.register_module()
class PatchEmbed(Stem):
    """Patches, each projected to a token; the image is padded inside, so that every pixel of any size is covered.

    Patches lie side by side (ViT, PVT), or overlap where they are larger than the stride (PVTv2). Parameter names are
    the published ones: ``proj``, ``norm``.

    Args:
        in_channels: Channels in. Default 3.
        embed_dims: Channels ``C`` out. Default 192.
        patch_size: Patch height and width in pixels, one integer or a pair. Default 16.
        stride: Pixels from one patch to the next, one integer or a pair. Default None: ``patch_size``.
        norm_cfg: Token norm of the result. Default None, none.

    Raises:
        ValueError: If a size is out of range, or patches are smaller than the stride.
    """

    def __init__(
        self,
        in_channels: int = 3,
        embed_dims: int = 192,
        patch_size: int | Grid = 16,
        stride: int | Grid | None = None,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        self.patch_size = check_grid('patch_size', patch_size)
        self.stride = self.patch_size if stride is None else check_grid('stride', stride)
        if any(side < step for side, step in zip(self.patch_size, self.stride)):
            raise ValueError(
                f'patch_size must be at least the stride, got {self.patch_size} and {self.stride}'
            )
        dims = check_positive_int('embed_dims', embed_dims)
        # Neighbours overlap by as much on both sides; patches side by side do not.
        overlaps = self.patch_size != self.stride
        height, width = self.patch_size
        padding = (height // 2, width // 2) if overlaps else 0
        self.proj = StridedConv2d(
            self.in_channels, dims, self.patch_size, stride=self.stride, padding=padding
        )
        self.norm = None if norm_cfg is None else build_token_norm(norm_cfg, embed_dims)

    def forward(self, image: Tensor) -> tuple[Tensor, Layout]:
        """Tokens ``(B, H * W, C)`` and their layout, see :meth:`grid_of`.

        Raises:
            ValueError: If ``image`` is not ``(B, in_channels, height, width)`` with sides of at least 1 pixel.
        """
        check_image(image, self.in_channels)
        maps = self.proj(pad_to_multiple(image, self.stride))
        layout = Layout((maps.shape[2], maps.shape[3]))
        tokens = maps.flatten(2).transpose(1, 2)
        return (tokens if self.norm is None else self.norm(tokens, layout)), layout
