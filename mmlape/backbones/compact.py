"""Compact transformers for small images: ViT-Lite, CVT and CCT."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from typing_extensions import Unpack

from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions, StagedTransformer
from .spec import UNSET, Parts
from .timm_rows import LAPE, TimmRow
from .vit import PlainTransformer

_COMMON: dict = dict(embed_dims=256, depth=7, num_heads=4, mlp_ratio=2, img_size=32)
COMPACT_ARCHS: dict[str, dict] = {
    # The class token sees the last two layers, which have LayerNorm, as in DTN's ViT (ICLR 2022, appendix A.1).
    'vit-lite-7-4': dict(
        _COMMON,
        prefix=dict(cls_token=True),
        pooling='cls_token',
        norm_places={'mmlape.DTN': dict(layers=-2)},
    ),
    'cvt-7-4': _COMMON,
    'cct-7-3x1': dict(_COMMON, stem=dict(type='mmlape.ConvPoolStem', kernel_size=3, stride=1)),
}


@MODELS.register_module()
class CompactTransformer(PlainTransformer):
    """ViT-Lite, CVT and CCT (Escaping the Big Data Paradigm with Compact Transformers, arXiv 2021): one stage, counted
    by layers, for images of 32 x 32 pixels or any other size.

    The norm after the attention stays in the stream (``mmlape.StreamNormBlock``). LaPE (ICCV 2023, Table 2) adds to the
    attention's input, the output of ``norm1`` (``pre_norm`` in published weights, which load by ``mmlape.Pretrained``
    with ``source='compact'``). Options are those of :class:`StagedTransformer`, with

    * ``arch``: ``'vit-lite-7-4'``: patches of 4 x 4 and a class token; ``'cvt-7-4'`` (default): the same patches alone;
      ``'cct-7-3x1'``: a 3 x 3 convolution and max pooling, ``mmlape.ConvPoolStem``; or a dict with ``embed_dims``,
      ``depth``, ``num_heads`` and ``mlp_ratio`` (4 if left out).
    * ``img_size``: 32 by default in the named architectures.
    * ``position``: a learned table by default, initially of std 0.2.
    * ``out_type``: classifiers have ``'pooled'``, which is ``'cls_token'`` for ViT-Lite and
      ``dict(type='mmlape.SequencePooling')`` for the others.
    * ``norm_cfg``: LayerNorm of eps 1e-5 by default. One ``mmlape.DTN`` goes by default into both norms of all layers,
      in ViT-Lite of all but the last two, which see the class token. The output has LayerNorm.
    * ``patch_size`` (4), ``in_channels``, ``with_cls_token``, ``num_registers``, ``prefix_after``,
      ``window_size``, ``qkv_bias`` (False).
    """

    archs, default_arch = COMPACT_ARCHS, 'cvt-7-4'
    parts = dict(
        StagedTransformer.parts,
        stem=dict(type='mmlape.PatchEmbed', patch_size=4),
        attention=dict(type='mmlape.Attention', qkv_bias=False),
        block=dict(type='mmlape.StreamNormBlock'),
        position=dict(type='mmlape.LearnedPosition', std=0.2),
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
    )
    pooling, source = dict(type='mmlape.SequencePooling'), 'compact'
    timm_rows = tuple(
        TimmRow(f'{prefix}{{}}_32', '{}', sizes, options, cfg)
        for prefix, options in (('', {}), ('lape_', LAPE))
        for sizes, cfg in (
            ('vit-lite-7-4 cvt-7-4', {}),
            ('cct-7-3x1', dict(first_conv='backbone.patch_embed.convs.0')),
        )
    )
    # Trained on CIFAR.
    timm_cfg = dict(
        num_classes=10,
        input_size=(3, 32, 32),
        crop_pct=1.0,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        patch_size: int | Grid = UNSET,
        in_channels: int = UNSET,
        with_cls_token: bool = UNSET,
        num_registers: int = UNSET,
        prefix_after: int | None = UNSET,
        window_size: int | Grid | Sequence[int | Grid | None] | None = UNSET,
        qkv_bias: bool = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            stem=dict(patch_size=patch_size, in_channels=in_channels),
            prefix=dict(cls_token=with_cls_token, registers=num_registers, after=prefix_after),
            attention=dict(window_size=window_size, qkv_bias=qkv_bias),
        )
        super().__init__(arch, img_size, own, **common)

    def init_parameters(self) -> None:
        """The published initial values: convolutions by their fan-in, a class token of zeros."""
        super().init_parameters()
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)
        for name in self.prefix_names:
            nn.init.zeros_(getattr(self, name))
