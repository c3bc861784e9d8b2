"""Norms of maps ``(B, C, H, W)`` that MMCV lacks, a neck of norms, and one that concatenates vectors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from mmengine.model import BaseModule
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mmlape.checks import check_eps, check_options, check_positive_int
from mmlape.layers import build_map_norm
from mmlape.registry import MODELS


@MODELS.register_module()
class LN2d(LayerNorm2d):
    """LayerNorm over the channels of each cell of maps ``(B, num_channels, H, W)`` (timm's layer), for a ``norm_cfg``.

    In MMCV's convolutions give ``eps`` too: their default is 1e-5 instead of 1e-6.
    """

    def __init__(self, num_channels: int, eps: float = 1e-6) -> None:
        super().__init__(check_positive_int('num_channels', num_channels), eps=check_eps(eps))

    def forward(self, x: Tensor) -> Tensor:
        """Contiguous maps of the same shape, which MMCV's RoIAlign takes for granted."""
        return super().forward(x).contiguous()


@MODELS.register_module()
class MapNorms(BaseModule):
    """A norm for each map: the neck of DINOv2's and DINOv3's linear probes (batch norm, then a 1 x 1 convolution,
    MMSegmentation's ``FCNHead`` without convolutions of its own).

    Args:
        in_channels: Channels of each map; one number for a single map.
        norm_cfg: The norm. Default ``dict(type='SyncBN')``.
        init_cfg: Of MMEngine. Default None.

    Returns (``forward``):
        A tuple of maps of the same shapes.

    Raises:
        ValueError: If an option is out of range, or (``forward``) the number of maps another one.
    """

    def __init__(
        self,
        in_channels: int | Sequence[int],
        norm_cfg: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        options = dict(in_channels=in_channels, norm_cfg=norm_cfg, init_cfg=init_cfg)
        check_options(MapNorms, options)
        norm_cfg = dict(type='SyncBN') if norm_cfg is None else norm_cfg
        super().__init__(init_cfg)
        channels = [in_channels] if isinstance(in_channels, int) else in_channels
        self.norms = nn.ModuleList(
            build_map_norm(norm_cfg, check_positive_int('in_channels', each)) for each in channels
        )
        if not self.norms:
            raise ValueError(f'in_channels must have at least one entry, got {in_channels!r}')

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps ``(B, C, H, W)``, one for each entry of ``in_channels``."""
        return tuple(norm(each) for norm, each in zip(self.norms, maps, strict=True))


@MODELS.register_module()
class ConcatVectors(BaseModule):
    """The vectors of several layers as one: linear classifiers on DINO's ViT-S read the class tokens of the last four
    layers (DINO, ICCV 2021, released code).

    Returns (``forward``):
        A tuple of one vector ``(B, C)``, C the sum of the channels.
    """

    def forward(self, vectors: Sequence[Tensor]) -> tuple[Tensor]:
        """Vectors ``(B, C_i)``, one for each of a backbone's ``out_indices``."""
        return (torch.cat([*vectors], dim=-1),)
