"""ViT-Adapter's spatial prior: a small convolutional pyramid beside the ViT."""

from __future__ import annotations

from mmcv.cnn import build_norm_layer
from torch import Tensor, nn

from mmlape.checks import check_eps, check_positive_int, check_rate
from mmlape.norm import TokenNorm

from .strided_conv import PatchConv2d, StridedConv2d, channels_last


class SpatialPrior(nn.Module):
    """Spatial prior module (ViT-Adapter, ICLR 2023, section 3.2).

    A ResNet-like stem to stride 4 and three strided convolutions to strides 8, 16 and 32, each projected to the ViT's
    channels.

    Args:
        embed_dims: Channels ``C`` of the ViT.
        inplanes: Channels of the stem. Default 64.
        norm_cfg: Batch norm of the convolutions, for MMCV's ``build_norm_layer``. Default ``dict(type='BN')``.
        with_stride_4: Whether the map of stride 4 is projected as well. Default True.
    """

    def __init__(
        self,
        embed_dims: int,
        inplanes: int = 64,
        norm_cfg: dict | None = None,
        with_stride_4: bool = True,
    ) -> None:
        super().__init__()
        check_positive_int('conv_inplanes', inplanes)
        norm_cfg = norm_cfg or dict(type='BN')
        self.stem = nn.Sequential(
            *_conv(3, inplanes, 2, norm_cfg),
            *_conv(inplanes, inplanes, 1, norm_cfg),
            *_conv(inplanes, inplanes, 1, norm_cfg),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        self.conv2 = nn.Sequential(*_conv(inplanes, 2 * inplanes, 2, norm_cfg))
        self.conv3 = nn.Sequential(*_conv(2 * inplanes, 4 * inplanes, 2, norm_cfg))
        self.conv4 = nn.Sequential(*_conv(4 * inplanes, 4 * inplanes, 2, norm_cfg))
        self.fc1 = PatchConv2d(inplanes, embed_dims, 1) if with_stride_4 else None
        self.fc2 = PatchConv2d(2 * inplanes, embed_dims, 1)
        self.fc3 = PatchConv2d(4 * inplanes, embed_dims, 1)
        self.fc4 = PatchConv2d(4 * inplanes, embed_dims, 1)

    def forward(self, image: Tensor) -> tuple[Tensor | None, Tensor, Tensor, Tensor]:
        """``(B, 3, H, W)`` to maps ``(B, C, H / s, W / s)`` for the strides s = 4, 8, 16, 32 (rounded up).

        The first is None without ``with_stride_4``.
        """
        c1 = self.stem(channels_last(image))
        c2 = self.conv2(c1)
        c3 = self.conv3(c2)
        c4 = self.conv4(c3)
        finest = None if self.fc1 is None else self.fc1(c1)
        return finest, self.fc2(c2), self.fc3(c3), self.fc4(c4)


def _conv(in_channels: int, out_channels: int, stride: int, norm_cfg: dict) -> list[nn.Module]:
    return [
        StridedConv2d(in_channels, out_channels, 3, stride=stride, padding=1, bias=False),
        build_map_norm(norm_cfg, out_channels),
        nn.ReLU(inplace=True),
    ]


def build_map_norm(norm_cfg: dict, channels: int) -> nn.Module:
    """MMCV's ``build_norm_layer`` for maps ``(B, C, H, W)``.

    Raises:
        TypeError: If ``norm_cfg`` is no dict with a ``type``, or an option has the wrong type.
        ValueError: If the norm is one of tokens, whose channels come last, or an option is out of range.
    """
    if not isinstance(norm_cfg, dict) or 'type' not in norm_cfg:
        raise TypeError(f"norm_cfg must be a dict with the key 'type', got {norm_cfg!r}")
    norm = build_norm_layer(norm_cfg, channels)[1]
    # LayerNorms of maps are subclasses of PyTorch's.
    if type(norm) is nn.LayerNorm or isinstance(norm, TokenNorm):
        raise ValueError(
            f"norm_cfg must be a norm of maps (B, C, H, W), e.g. dict(type='BN'), got {norm_cfg}"
        )
    check_eps(getattr(norm, 'eps', 1.0))
    if getattr(norm, 'momentum', None) is not None:
        check_rate('momentum', norm.momentum, with_one=True)
    return norm
