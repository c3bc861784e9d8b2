"""Plain Vision Transformers for dense prediction (ViT, DeiT, CeiT): one stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import timm
from typing_extensions import Unpack

from mmlape.checks import check_number, check_positive_int
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions, StagedTransformer
from .spec import UNSET, Parts
from .timm_archs import timm_arch
from .timm_rows import DTN, LAPE, TimmRow

_SIZES = dict(embed_dims=..., depth=..., num_heads=..., mlp_ratio=4)
ARCHS = {
    'deit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'deit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
    'deit-base': dict(embed_dims=768, depth=12, num_heads=12, mlp_ratio=4),
    # Square numbers of heads: ViT-T*, ViT-S* and ViT-B* of DTN (ICLR 2022, Table 1). Its ViT-S and ViT-B are DeiT's.
    'vit-tiny-star': dict(embed_dims=192, depth=12, num_heads=4, mlp_ratio=4),
    'vit-small-star': dict(embed_dims=432, depth=12, num_heads=9, mlp_ratio=4),
    'vit-base-star': dict(embed_dims=768, depth=12, num_heads=16, mlp_ratio=4),
}
CEIT_ARCHS = {
    'ceit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'ceit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
}


class PlainTransformer(StagedTransformer):
    """Networks of one stage, counted by layers, whose names in the state dict are timm's ViT's.

    Architectures have ``embed_dims``, ``depth``, ``num_heads`` and ``mlp_ratio`` (4 if left out).
    """

    sizes = _SIZES
    counts, final_norm = 'layers', True
    names = dict(
        embed='patch_embed', position='position', attention_position='inside', blocks='blocks', norm='',
        table='pos_embed', first_norm='norm_pre',
    )  # fmt: skip

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        keys = ('embed_dims', 'depth', 'num_heads')
        sizes: dict = {key: check_positive_int(f'arch[{key!r}]', arch[key]) for key in keys}
        ratio = check_number("arch['mlp_ratio']", arch['mlp_ratio'], above=0)
        return [dict(sizes, mlp=dict(ratio=ratio))]

    @property
    def depth(self) -> int:
        """Layers of the architecture."""
        return self.num_units


@MODELS.register_module()
class VisionTransformer(PlainTransformer):
    """Vision Transformer (ICLR 2021) and DeiT (ICML 2021): one stage, counted by layers.

    Parameter names in the state dict are timm's, so timm and DeiT weights load as they are. Options are those of
    :class:`StagedTransformer`, with

    * ``arch``: ``'deit-tiny'`` (default), ``'deit-small'``, ``'deit-base'``, one of DTN's ``'vit-tiny-star'``,
      ``'vit-small-star'``, ``'vit-base-star'`` with 4, 9 and 16 heads (192, 432 and 768 channels); the name of one of
      timm's plain Vision Transformers (AugReg, CLIP, SigLIP, DINOv2, DINOv3, EVA-02, BEiT, ...), e.g.
      ``'vit_small_patch16_dinov3.lvd1689m'``, with all parts as timm's; or a dict with ``embed_dims``, ``depth``,
      ``num_heads`` and ``mlp_ratio`` (4 if left out).
    * ``position``: a learned table by default. ``prefix``: a class token by default.
    * ``norm_cfg``: of all layers and the output. One ``mmlape.DTN`` goes by default into all layers but the last two
      (``layers=-2``), as published for ViT (ICLR 2022, appendix A.1), with the heads of the attention.
    * ``out_indices``: -1 by default, the last layer; ``final_norm``: True.
    * ``patch_size`` (16), ``in_channels`` (3); ``with_cls_token``, ``with_dist_token``, ``num_registers``,
      ``prefix_after``; ``window_size`` (attention windows in tokens: None for global attention, an integer or a pair
      ``(height, width)`` for all layers, or a list with one of these per layer; two integers are always one window,
      for two layers write ``[[7, 7], [14, 14]]``), ``qkv_bias``; ``layer_scale`` (True for a learned scale per channel
      on both branches of each block, initially 1; a number for another initial value). Defaults are the architecture's.
    """

    archs, default_arch = ARCHS, 'deit-tiny'
    parts = dict(
        StagedTransformer.parts,
        block=dict(type='mmlape.Block', layer_scale=False),
        prefix=dict(cls_token=True),
    )
    # The class token sees the last two layers, which have LayerNorm (DTN, ICLR 2022, appendix A.1).
    norm_places = {'mmlape.DTN': dict(layers=-2)}
    norm_covers_output = True
    pooling, source = 'cls_token', 'deit'
    timm_rows: ClassVar[tuple[TimmRow, ...]] = (
        TimmRow('lape_deit_{}_patch16_224', 'deit-{}', 'tiny small base', LAPE),
        TimmRow('lape_deit_{}_distilled_patch16_224', 'deit-{}', 'tiny small base', dict(LAPE, distilled=True)),
        TimmRow('vit_{}_star_patch16_224', 'vit-{}-star', 'tiny small base'),
        TimmRow('dtn_vit_{}_star_patch16_224', 'vit-{}-star', 'tiny small base', DTN),
        TimmRow('dtn_vit_{}_patch16_224', 'deit-{}', 'small base', DTN),
    )  # fmt: skip

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        patch_size: int | Grid = UNSET,
        in_channels: int = UNSET,
        with_cls_token: bool = UNSET,
        with_dist_token: bool = UNSET,
        num_registers: int = UNSET,
        prefix_after: int | None = UNSET,
        window_size: int | Grid | Sequence[int | Grid | None] | None = UNSET,
        qkv_bias: bool = UNSET,
        layer_scale: bool | float | None = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            stem=dict(patch_size=patch_size, in_channels=in_channels),
            prefix=dict(
                cls_token=with_cls_token,
                dist_token=with_dist_token,
                registers=num_registers,
                after=prefix_after,
            ),
            attention=dict(window_size=window_size, qkv_bias=qkv_bias),
            block=dict(layer_scale=layer_scale),
        )
        super().__init__(arch, img_size, own, **common)

    @classmethod
    def resolve_arch(
        cls, arch: str | dict | None, sizes: Mapping[str, Any] | None = None
    ) -> tuple[dict, dict]:
        """Return sizes and configs of parts as all networks do; a name may be one of timm's."""
        if isinstance(arch, str) and arch not in cls.archs and timm.is_model(arch):
            arch = timm_arch(arch)
        return super().resolve_arch(arch, sizes)

    @property
    def patch_size(self) -> tuple[int, int]:
        """Patch height and width in pixels."""
        return self.patch_embed.patch_size


@MODELS.register_module()
class CeiT(VisionTransformer):
    """Convolution-enhanced image Transformer (CeiT, ICCV 2021): one stage of stride 16, counted by layers.

    Weights of the published code load by ``mmlape.Pretrained`` with ``source='ceit'``. Options are those of
    :class:`VisionTransformer`, with

    * ``arch``: ``'ceit-tiny'`` (default), ``'ceit-small'``, or a dict with ``embed_dims``, ``depth``, ``num_heads`` and
      ``mlp_ratio`` (4 if left out).
    * ``prefix``: a class token, and ``across_layers=dict(type='mmlape.LayerClassAttention')``, which computes the class
      token of the output from those after every layer. Its embedding of layers and its LayerNorm stay with any
      ``joining`` and ``norm_cfg``.
    """

    archs, default_arch = CEIT_ARCHS, 'ceit-tiny'
    parts = dict(
        VisionTransformer.parts,
        stem=dict(type='mmlape.ImageToTokens'),
        mlp=dict(type='mmlape.LocallyEnhancedMlp'),
        prefix=dict(cls_token=True, across_layers=dict(type='mmlape.LayerClassAttention')),
    )
    source = 'ceit'
    timm_rows = (
        TimmRow('ceit_{}_patch16_224', 'ceit-{}', 'tiny small'),
        TimmRow('lape_ceit_{}_patch16_224', 'ceit-{}', 'tiny small', LAPE),
    )
    timm_cfg = dict(first_conv='backbone.patch_embed.conv')
