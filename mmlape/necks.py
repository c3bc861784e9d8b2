"""Between a ViT and a head: ViTDet's simple feature pyramid, norms of maps, vectors of several layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from mmengine.model import BaseModule
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from mmlape.checks import check_eps, check_number, check_options, check_positive_int, check_rate
from mmlape.layers import Attention, Block, Mlp, build_map_norm, init_linear
from mmlape.layout import Layout
from mmlape.norm import build_token_norm
from mmlape.registry import MODELS

# Cells along a side for each cell of the backbone's map.
SCALES = (4, 2, 1, 0.5)


@MODELS.register_module()
class SimpleFeaturePyramid(BaseModule):
    """Simple feature pyramid (ViTDet, ECCV 2022, section 3): no lateral and no top-down connections.

    Scales 4, 2, 1 and 0.5 of a map of stride 16 have strides 4, 8, 16 and 32. Transposed convolutions make finer maps,
    max pooling coarser ones (sizes are rounded up); then each has a 1 x 1 and a 3 x 3 convolution, each with a norm.

    Args:
        in_channels: Channels of the backbone's last map, the only one that is read.
        out_channels: Channels of the outputs. Default 256.
        scales: Cells of each output per cell of the backbone's map, along a side; of 4, 2, 1 and 0.5. Default all.
        num_outs: Number of outputs; each beyond those of ``scales`` has every second cell of the one before. Default
            None: one for each scale.
        norm_cfg: Norms of maps. Default ``dict(type='mmlape.LN2d', eps=1e-6)``, as published.
        init_cfg: Of MMEngine. Default None: PyTorch's initial values, as published.

    Returns (``forward``):
        A tuple of maps ``(B, out_channels, ceil(H * s), ceil(W * s))``, one for each scale s.

    Raises:
        ValueError: If an option is out of range.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int = 256,
        *,
        scales: Sequence[float] = SCALES,
        num_outs: int | None = None,
        norm_cfg: dict | None = None,
        init_cfg: dict | list[dict] | None = None,
    ) -> None:
        options = dict(scales=scales, num_outs=num_outs, norm_cfg=norm_cfg, init_cfg=init_cfg)
        check_options(SimpleFeaturePyramid, options)
        super().__init__(init_cfg)
        check_positive_int('in_channels', in_channels, minimum=4)
        check_positive_int('out_channels', out_channels)
        norm_cfg = dict(type='mmlape.LN2d', eps=1e-6) if norm_cfg is None else norm_cfg
        self.levels = nn.ModuleList()
        for scale in scales:
            if scale not in SCALES:
                raise ValueError(f'scales must be of {SCALES}, got {scale!r} in {scales!r}')
            rescale, channels = _rescale(in_channels, scale, norm_cfg)
            self.levels.append(
                nn.Sequential(
                    *rescale,
                    nn.Conv2d(channels, out_channels, 1, bias=False),
                    build_map_norm(norm_cfg, out_channels),
                    nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False),
                    build_map_norm(norm_cfg, out_channels),
                )
            )
        count = len(self.levels)
        if not count:
            raise ValueError(f'scales must have at least one entry, got {scales!r}')
        outs = count if num_outs is None else num_outs
        self.num_further = check_positive_int('num_outs', outs, minimum=count) - count

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Outputs for the backbone's maps, of which the last is ``(B, in_channels, H, W)``."""
        outputs = [level(maps[-1]) for level in self.levels]
        for _ in range(self.num_further):
            outputs.append(F.max_pool2d(outputs[-1], 1, stride=2))
        # MMCV's RoIAlign takes contiguous maps for granted; a ViT's are views of its tokens.
        return tuple(output.contiguous() for output in outputs)


def _rescale(channels: int, scale: float, norm_cfg: dict) -> tuple[list[nn.Module], int]:
    """Layers that make a map of this scale, and its channels."""
    half, quarter = channels // 2, channels // 4
    if scale == 4:
        layers = [_finer(channels, half), build_map_norm(norm_cfg, half), nn.GELU()]
        return [*layers, _finer(half, quarter)], quarter
    if scale == 2:
        return [_finer(channels, half)], half
    return [] if scale == 1 else [nn.MaxPool2d(2, ceil_mode=True)], channels


def _finer(in_channels: int, out_channels: int) -> nn.Module:
    return nn.ConvTranspose2d(in_channels, out_channels, kernel_size=2, stride=2)


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
class LastMapAttention(Block):
    """A transformer block on the last of several maps, and a LayerNorm; the others stay. ViT-Adapter's HTC++ (ICLR
    2023, its code) has it before the FPN: in a detector ``neck=[dict(type='mmlape.LastMapAttention', ...),
    dict(type='FPN', ...)]``.

    Args:
        in_channels: Channels ``C`` of the last map.
        num_heads: Heads of the attention. Default 32.
        mlp_ratio: Hidden channels of the feed-forward network in units of C. Default 4.
        drop_path_rate: Probability of dropping a branch for one image. Default 0.

    Returns (``forward``):
        A tuple of maps of the same shapes.

    Raises:
        ValueError: If an option is out of range, or ``num_heads`` does not divide ``in_channels``.
    """

    def __init__(
        self,
        in_channels: int,
        num_heads: int = 32,
        mlp_ratio: float = 4.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        check_positive_int('in_channels', in_channels)
        hidden = int(in_channels * check_number('mlp_ratio', mlp_ratio, above=0))
        norm_cfg = dict(type='mmlape.LN', eps=1e-5)
        super().__init__(
            in_channels,
            Attention(in_channels, num_heads),
            Mlp(in_channels, hidden),
            drop_path_rate=drop_path_rate,
            norm_cfg=norm_cfg,
        )
        self.final_norm = build_token_norm(norm_cfg, in_channels)
        self.apply(init_linear)

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Outputs for the backbone's maps, of which the last is ``(B, C, H, W)``."""
        *others, last = maps
        layout = Layout((last.shape[2], last.shape[3]))
        tokens = super().forward(last.flatten(2).transpose(1, 2), layout)
        return (*others, layout.to_maps(self.final_norm(tokens, layout)).contiguous())


@MODELS.register_module()
class MapNorms(BaseModule):
    """A norm for each map: the neck of DINOv2's and DINOv3's linear probes (batch norm, then a 1 x 1 convolution,
    MMSegmentation's ``FCNHead`` without convolutions of its own). DINOv3 drops channels before the norm, DINOv2 after
    it, where the head does.

    Args:
        in_channels: Channels of each map; one number for a single map.
        norm_cfg: The norm. Default ``dict(type='SyncBN')``.
        drop_rate: Dropout of whole channels before the norm. Default 0.
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
        drop_rate: float = 0.0,
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
        self.dropout = nn.Dropout2d(check_rate('drop_rate', drop_rate))

    def forward(self, maps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Maps ``(B, C, H, W)``, one for each entry of ``in_channels``."""
        return tuple(norm(self.dropout(each)) for norm, each in zip(self.norms, maps, strict=True))


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
