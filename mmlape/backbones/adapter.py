"""A plain ViT with a spatial pyramid beside it: ViT-Adapter (ICLR 2023), and a light one without interactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import (
    check_number,
    check_option,
    check_options,
    check_outputs,
    check_positive_int,
)
from mmlape.layers import (
    DeformableAttention,
    Interaction,
    PatchConv2d,
    SpatialPrior,
    build_map_norm,
    check_image,
    fast_memory_format,
    init_linear,
    pad_to_multiple,
    sampling_plan,
)
from mmlape.layout import Grid, maps_of
from mmlape.registry import MODELS
from mmlape.runtime.compile import check_compile_blocks, run_block

from .base import Backbone
from .builder import init_convolution
from .network import StagedTransformer
from .published import ADAPTER
from .spec import UNSET
from .stage import Stage

STRIDES = (4, 8, 16, 32)


class AdapterBackbone(Backbone):
    """Base class of adapters: a ViT of one stage as ``vit``, and four maps of strides 4 to 32 of images of any size.

    A subclass sets ``vit`` and calls :meth:`_build_outputs`.

    Attributes:
        embed_dims: Channels ``C`` of every map, the ViT's.
        out_indices: Maps to return, 0 for stride 4 to 3 for stride 32.
    """

    vit: StagedTransformer
    embed_dims: int
    out_indices: tuple[int, ...]

    def stages(self) -> list[Stage]:
        """The ViT's. All other parameters are deepest for layer-wise learning rates, as published: they are new."""
        return [stage.within('vit') for stage in self.vit.stages()]

    def _build_outputs(self, norm_cfg: dict) -> None:
        """Norms of the maps, and the published initial values of all modules but the ViT."""
        for index in self.out_indices:
            self.add_module(f'norm{index + 1}', build_map_norm(norm_cfg, self.embed_dims))
        for part in self.children():
            if part is not self.vit:
                part.apply(_init_beside_vit)

    def _pad(self, image: Tensor) -> Tensor:
        """Pad to whole cells of the coarsest map; ValueError if it is not ``(B, in_channels, H, W)``."""
        check_image(image, self.vit.stages()[0].embed.in_channels)
        padded = pad_to_multiple(image, (STRIDES[-1],) * 2)
        if self.training and len(image) == 1 and padded.shape[-2:] == (STRIDES[-1],) * 2:
            # Batch norm in training refuses a single cell.
            padded = F.pad(padded, (0, STRIDES[-1]))
        return padded

    def _output(self, index: int, own: Tensor, vit_map: Tensor, image_size: Grid) -> Tensor:
        """The map ``index``: its own features and the ViT's, resized; normalised, and cut to the image's extent."""
        stride, vit_stride = STRIDES[index], self.vit.stages()[0].embed.stride
        out = own + _resize(vit_map, vit_stride, stride, (own.shape[2], own.shape[3]))
        out = getattr(self, f'norm{index + 1}')(out)
        rows, columns = ((side + stride - 1) // stride for side in image_size)
        return out[..., :rows, :columns].contiguous()


@MODELS.register_module()
class ViTAdapter(AdapterBackbone):
    """ViT-Adapter (ICLR 2023) around any plain ViT of ours, with any position, joining and norm.

    Images have any size: they are padded inside, to a multiple of 32 for the pyramid and then to a multiple of the
    patches for the ViT; maps are cropped.

    Args:
        vit: Config of a ``mmlape.VisionTransformer`` (default type) or another network of ours with one stage.
            Published adapters have ``with_cls_token=False, final_norm=False, layer_scale=True``. Prefix tokens run
            through the ViT's layers, but not through the exchange with the pyramid.
        conv_inplanes: Channels of the spatial prior's stem. Default 64.
        num_points: Sampling points of deformable attention per head and level. Default 4.
        deform_num_heads: Its heads. Default 6.
        cffn_ratio: Hidden channels of the extractors' feed-forward networks in units of C. Default 0.25.
        deform_ratio: Channels of projected values in deformable attention in units of C. Default 1.
        interaction_indexes: [first, last] ViT layer of each interaction, ascending; together they must cover all layers
            once. Default ``[[0, 2], [3, 5], [6, 8], [9, 11]]``, of 12 layers.
        num_extra_extractors: Extractors after the last interaction's own. Default 2 (0: published around MAE).
        vit_feature: What the ViT adds to the four maps: ``'last'`` (default, published for detection): its last map;
            ``'per_stage'`` (segmentation): its map after each of four interactions.
        out_indices: Maps to return, 0 for stride 4 to 3 for stride 32. Modules that only other maps need are not built.
            Default ``(0, 1, 2, 3)``.
        norm_cfg: Batch norms of the spatial prior and of the outputs. Default ``dict(type='BN')``; ``SyncBN`` is
            published.
        with_cp: Recompute ViT blocks, injectors and extractors in the backward pass. Default False.
        compile_blocks: Compile them, see :class:`StagedTransformer`. Default False.
        init_cfg: Initialisation of the whole backbone; ``vit`` has its own ``init_cfg`` for ViT weights.

    Returns (``forward``):
        A tuple with one map ``(B, C, ceil(H / s), ceil(W / s))`` per entry of ``out_indices``, s = 4, 8, 16, 32.

    Raises:
        ValueError: If an option is unknown or out of range, or does not fit the ViT.
        TypeError: If an option has the wrong type.
    """

    published = ADAPTER

    def __init__(
        self,
        vit: dict = UNSET,
        *,
        conv_inplanes: int = 64,
        num_points: int = 4,
        deform_num_heads: int = 6,
        cffn_ratio: float = 0.25,
        deform_ratio: float = 1.0,
        interaction_indexes: Sequence[Sequence[int]] = ((0, 2), (3, 5), (6, 8), (9, 11)),
        num_extra_extractors: int = 2,
        vit_feature: str = 'last',
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        norm_cfg: dict | None = None,
        with_cp: bool = False,
        compile_blocks: bool | dict = False,
        init_cfg: dict | None = None,
        **unknown: Any,  # refused here: Python's own error knows no published names
    ) -> None:
        check_options(ViTAdapter, unknown)
        if vit is UNSET:
            raise TypeError("ViTAdapter needs a ViT: vit=dict(arch='deit-small')")
        options = dict(vit=vit, interaction_indexes=interaction_indexes, with_cp=with_cp)
        check_options(ViTAdapter, dict(options, norm_cfg=norm_cfg, init_cfg=init_cfg))
        super().__init__(init_cfg)
        self.with_cp = with_cp
        self.compile_blocks = check_compile_blocks(compile_blocks)
        self.vit = build_vit(vit, with_cp=with_cp, compile_blocks=compile_blocks)
        self.embed_dims = dims = self.vit.embed_dims
        self.interaction_indexes = _resolve_interactions(interaction_indexes, self.vit.num_units)
        self.vit_feature = check_option('vit_feature', vit_feature, ('last', 'per_stage'))
        if vit_feature == 'per_stage' and len(self.interaction_indexes) != len(STRIDES):
            raise ValueError(
                "vit_feature='per_stage' needs four interactions, "
                f'got interaction_indexes={interaction_indexes}'
            )
        self.out_indices = check_outputs(out_indices, len(STRIDES), 'maps')
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        deform = dict(
            num_heads=check_positive_int('deform_num_heads', deform_num_heads),
            num_points=check_positive_int('num_points', num_points),
            value_proj_ratio=check_number('deform_ratio', deform_ratio, above=0),
        )
        extra = check_positive_int('num_extra_extractors', num_extra_extractors, minimum=0)
        last = len(self.interaction_indexes) - 1
        finest = 0 in self.out_indices
        levels = (0, 1, 2, 3) if finest else (1, 2, 3)
        in_channels = self.vit.stages()[0].embed.in_channels
        self.spm = SpatialPrior(dims, conv_inplanes, norm_cfg, levels, in_channels)
        self.level_embed = nn.Parameter(torch.empty(3, dims))
        ratio = check_number('cffn_ratio', cffn_ratio, above=0)
        drop = self.vit.drop_path_rate
        self.interactions = nn.ModuleList(
            Interaction(dims, deform, extra if index == last else 0, ratio, drop)
            for index in range(last + 1)
        )
        self.up = nn.ConvTranspose2d(dims, dims, 2, stride=2) if finest else None
        nn.init.normal_(self.level_embed)
        self._build_outputs(norm_cfg)
        for module in self.interactions.modules():
            if isinstance(module, DeformableAttention):
                module.init_weights()

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of ``out_indices`` for images ``(B, in_channels, H, W)``."""
        image, image_size = self._pad(image), (image.shape[2], image.shape[3])
        *finest, c2, c3, c4 = self.spm(image)
        levels = [c2, c3, c4]
        shapes = tuple((level.shape[2], level.shape[3]) for level in levels)
        pyramid = torch.cat(
            [
                level.flatten(2).transpose(1, 2) + embed
                for level, embed in zip(levels, self.level_embed)
            ],
            dim=1,
        )
        pyramid, vit_maps = self._interact(image, pyramid, shapes)
        levels = [
            maps_of(level, shape)
            for level, shape in zip(pyramid.split([h * w for h, w in shapes], dim=1), shapes)
        ]
        if self.up is not None:
            finest = [self.up(fast_memory_format(levels[0], self.training)) + finest[0]]
        maps = dict(zip(self.spm.out_indices, (*finest, *levels)))
        added = vit_maps if self.vit_feature == 'per_stage' else vit_maps[-1:] * len(STRIDES)
        return tuple(
            self._output(index, maps[index], added[index], image_size) for index in self.out_indices
        )

    def _interact(
        self, image: Tensor, pyramid: Tensor, shapes: tuple[Grid, ...]
    ) -> tuple[Tensor, list[Tensor]]:
        """Run the ViT with all exchanges; return the pyramid and the ViT's map after each."""
        (stage,) = self.vit.stages()
        tokens, layout, plan = stage.begin(image)
        grid = layout.grid
        # If patches do not divide 32, the ViT's padded image is larger than the pyramid's.
        down, across = (
            1.0 if STRIDES[-1] % step == 0 else cells * step / side
            for cells, step, side in zip(grid, stage.embed.stride, image.shape[-2:])
        )
        into_tokens = sampling_plan((grid,), shapes, image.device, (down, across))
        into_pyramid = sampling_plan(shapes, (grid,), image.device, (1 / down, 1 / across))
        run = partial(run_block, with_cp=self.with_cp, compile_blocks=self.compile_blocks)
        maps = []
        interactions = cast('Sequence[Interaction]', self.interactions)
        for interaction, (first, last) in zip(interactions, self.interaction_indexes):
            prefix, cells = layout.split(tokens)
            cells = run(interaction.injector, cells, pyramid, into_tokens)
            tokens = layout.join(prefix, cells)
            tokens, layout = stage.run(tokens, layout, plan, first, last + 1)
            tokens = self.vit.finish(last, tokens, layout)
            _, cells = layout.split(tokens)
            for extractor in interaction.extractors():
                pyramid = run(extractor, pyramid, cells, into_pyramid, shapes)
            maps.append(layout.to_maps(tokens))
        return pyramid, maps


@MODELS.register_module()
class LightViTAdapter(AdapterBackbone):
    """Maps of three ViT layers, resized, and a small spatial prior; no interactions, and no deformable attention.

    For small networks, after the Spatial Tuning Adapter of DEIMv2 (arXiv 2509.20787)::

        map_s = norm(resize(conv1x1(ViT map of level s)) + conv1x1(prior of stride s))

    which is a 1 x 1 convolution of both, concatenated, but runs on the ViT's grid where its map is smaller. The maps
    have the strides, channels and extents of :class:`ViTAdapter`'s: heads and necks need no change.

    Args:
        vit: Config of a ``mmlape.VisionTransformer`` (default type) or another network of ours with one stage, as of
            :class:`ViTAdapter`. Nothing is added to its tokens.
        vit_layers: The three layers whose maps go to strides 8, 16 and 32, ascending; the first also to stride 4. The
            last must be the last layer, whose map alone has the ViT's final norm. Default None: the last layer of each
            third, ``[3, 7, 11]`` of 12.
        conv_inplanes: Channels of the spatial prior's stem, of which stride 32 has four times as many. Default 16.
        out_indices: Maps to return, 0 for stride 4 to 3 for stride 32, which must be among them: only it reads the last
            ViT layer. Modules that only other maps need are not built. Default ``(0, 1, 2, 3)``.
        norm_cfg: Batch norms of the spatial prior and of the outputs. Default ``dict(type='BN')``.
        with_cp: Recompute ViT blocks in the backward pass. Default False.
        compile_blocks: Compile them, see :class:`StagedTransformer`. Default False.
        init_cfg: Initialisation of the whole backbone; ``vit`` has its own ``init_cfg`` for ViT weights.

    Returns (``forward``):
        A tuple with one map ``(B, C, ceil(H / s), ceil(W / s))`` per entry of ``out_indices``, s = 4, 8, 16, 32.

    Raises:
        ValueError: If an option is unknown or out of range, or does not fit the ViT.
        TypeError: If an option has the wrong type.
    """

    def __init__(
        self,
        vit: dict,
        *,
        vit_layers: Sequence[int] | None = None,
        conv_inplanes: int = 16,
        out_indices: int | Sequence[int] = (0, 1, 2, 3),
        norm_cfg: dict | None = None,
        with_cp: bool = False,
        compile_blocks: bool | dict = False,
        init_cfg: dict | None = None,
    ) -> None:
        options = dict(vit=vit, vit_layers=vit_layers, with_cp=with_cp)
        check_options(LightViTAdapter, dict(options, norm_cfg=norm_cfg, init_cfg=init_cfg))
        super().__init__(init_cfg)
        check_compile_blocks(compile_blocks)
        self.vit = build_vit(vit, with_cp=with_cp, compile_blocks=compile_blocks)
        self.embed_dims = dims = self.vit.embed_dims
        self.vit_layers = _resolve_layers(vit_layers, self.vit.num_units)
        self.out_indices = check_outputs(out_indices, len(STRIDES), 'maps')
        if self.out_indices[-1] != len(STRIDES) - 1:
            raise ValueError(
                f'out_indices must have 3 (stride 32), the map of the last ViT layer, got {out_indices}'
            )
        norm_cfg = dict(type='BN') if norm_cfg is None else norm_cfg
        in_channels = self.vit.stages()[0].embed.in_channels
        self.spm = SpatialPrior(dims, conv_inplanes, norm_cfg, self.out_indices, in_channels)
        for index in self.out_indices:
            self.add_module(f'lateral{index + 1}', PatchConv2d(dims, dims, 1))
        self._build_outputs(norm_cfg)

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        """Return the maps of ``out_indices`` for images ``(B, in_channels, H, W)``."""
        image, image_size = self._pad(image), (image.shape[2], image.shape[3])
        vit_maps = self._vit_maps(image)
        outputs = []
        for index, prior in zip(self.out_indices, self.spm(image)):
            vit_map = getattr(self, f'lateral{index + 1}')(vit_maps[max(index - 1, 0)])
            outputs.append(self._output(index, prior, vit_map, image_size))
        return tuple(outputs)

    def _vit_maps(self, image: Tensor) -> list[Tensor]:
        """The ViT's map after each of ``vit_layers``."""
        (stage,) = self.vit.stages()
        tokens, layout, plan = stage.begin(image)
        maps, first = [], 0
        for layer in self.vit_layers:
            tokens, layout = stage.run(tokens, layout, plan, first, layer + 1)
            maps.append(layout.to_maps(self.vit.finish(layer, tokens, layout)))
            first = layer + 1
        return maps


def build_vit(vit: dict, **switches: bool | dict) -> StagedTransformer:
    """The ViT inside of another network, which reads all its layers; ``switches``: ``with_cp``, ``compile_blocks``.

    Raises:
        TypeError: If it is not a network of one stage, counted by layers.
        ValueError: If its outputs are not maps, or end before its last layer.
    """
    options = {'type': 'mmlape.VisionTransformer', **vit}
    options.update({name: value for name, value in switches.items() if value is not False})
    built = MODELS.build(options)
    one_stage = isinstance(built, StagedTransformer) and len(built.stages()) == 1
    if not one_stage or built.counts != 'layers':
        raise TypeError(
            f'vit must build a VisionTransformer or another network of one stage, got {type(built).__name__}'
        )
    if built.out_type != 'featmap':
        raise ValueError(f"vit's out_type must be left out or 'featmap', got {built.out_type!r}")
    if built.out_indices[-1] != built.num_units - 1:
        raise ValueError(f"vit's out_indices must name the last layer, got {built.out_indices}")
    return built


def _resolve_interactions(
    indexes: Sequence[Sequence[int]], depth: int
) -> tuple[tuple[int, int], ...]:
    """Pairs [first, last] that cover the layers 0..depth-1 once, in order."""
    pairs = tuple(tuple(pair) for pair in indexes)
    covered = [layer for pair in pairs if len(pair) == 2 for layer in range(pair[0], pair[1] + 1)]
    if any(len(pair) != 2 for pair in pairs) or covered != list(range(depth)):
        ends = [-1, *_ends(depth, 4)]
        example = [[before + 1, last] for before, last in pairwise(ends) if before < last]
        raise ValueError(
            f'interaction_indexes must be pairs [first, last] that cover the layers 0..{depth - 1} '
            f'once and in order, e.g. {example}, got {indexes}'
        )
    return tuple((first, last) for first, last in pairs)


def _resolve_layers(layers: Sequence[int] | None, depth: int) -> tuple[int, ...]:
    """Three ascending layers, of which the last is the ViT's."""
    example = _ends(depth, 3)
    chosen = example if layers is None else list(layers)
    if len(chosen) != 3 or chosen != sorted(chosen) or chosen[0] < 0 or chosen[-1] != depth - 1:
        raise ValueError(
            f'vit_layers must be three ascending layers of 0..{depth - 1} that end with the last, '
            f'e.g. {example}, got {layers}'
        )
    return tuple(chosen)


def _ends(depth: int, parts: int) -> list[int]:
    """The last layer of each of so many parts of the depth, which are empty where there are fewer layers."""
    return [-(-depth * part // parts) - 1 for part in range(1, parts + 1)]


def _resize(vit_map: Tensor, vit_stride: Grid, stride: int, size: Grid) -> Tensor:
    """Resample a map of the ViT ``(B, C, H, W)`` to ``stride``, aligned with the image, and crop it to ``size``."""
    if vit_stride == (stride, stride):
        return vit_map
    maps = F.interpolate(
        vit_map,
        scale_factor=tuple(side / stride for side in vit_stride),
        mode='bilinear',
        align_corners=False,
        recompute_scale_factor=False,
    )
    return maps[..., : size[0], : size[1]]


def _init_beside_vit(module: nn.Module) -> None:
    init_linear(module)
    init_convolution(module)
