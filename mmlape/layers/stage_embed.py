"""From an image, or the map of the stage before, to the tokens of a stage of a pyramid."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.checks import check_positive_int

from .patch_embed import pad_to_multiple


class StageEmbed(nn.Module):
    """Strided convolution and LayerNorm; every pixel of maps of any size is covered.

    Patches are as large as the stride (PVT), or overlap (PVTv2: ``kernel_size`` odd and larger).

    Parameter names are the published ones: ``proj``, ``norm``.

    Args:
        in_channels: Channels in.
        embed_dims: Channels ``C`` out.
        stride: Pixels per token and axis.
        kernel_size: Side of a patch in pixels. Default None: the stride.
    """

    def __init__(
        self, in_channels: int, embed_dims: int, stride: int, kernel_size: int | None = None
    ) -> None:
        super().__init__()
        self.in_channels = check_positive_int('in_channels', in_channels)
        self.stride = check_positive_int('stride', stride)
        kernel = check_positive_int(
            'kernel_size', stride if kernel_size is None else kernel_size, minimum=stride
        )
        # Neighbours overlap by as much on both sides; patches side by side do not.
        padding = 0 if kernel == stride else kernel // 2
        self.proj = nn.Conv2d(self.in_channels, embed_dims, kernel, stride=stride, padding=padding)
        self.norm = nn.LayerNorm(embed_dims)

    def forward(self, maps: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """Return tokens ``(B, H * W, C)`` and their grid ``(H, W)``, with ``H = ceil(height / stride)``.

        Raises:
            ValueError: If ``maps`` is not ``(B, in_channels, height, width)`` with sides of at least 1 pixel.
        """
        if maps.ndim != 4 or maps.shape[1] != self.in_channels or 0 in maps.shape[-2:]:
            raise ValueError(
                f'image must have the shape (batch, {self.in_channels}, height, width) '
                f'with sides of at least 1 pixel, got {tuple(maps.shape)}'
            )
        maps = self.proj(pad_to_multiple(maps, (self.stride, self.stride)))
        grid = (maps.shape[2], maps.shape[3])
        return self.norm(maps.flatten(2).transpose(1, 2)), grid
