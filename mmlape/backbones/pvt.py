"""Pyramid Vision Transformers: PVT (ICCV 2021) and PVTv2 (CVMJ 2022), four stages of strides 4, 8, 16 and 32."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from typing_extensions import Unpack

from mmlape.checks import check_number, check_positive_int
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .builder import init_convolution
from .network import NetworkOptions, StagedTransformer
from .spec import UNSET, Parts, as_list
from .timm_rows import DTN, PYRAMID_CFG, TimmRow

_COMMON = dict(
    embed_dims=[64, 128, 320, 512],
    num_heads=[1, 2, 5, 8],
    mlp_ratios=[8, 8, 4, 4],
    sr_ratios=[8, 4, 2, 1],
)
PVT_ARCHS = {
    'tiny': dict(_COMMON, depths=[2, 2, 2, 2]),
    'small': dict(_COMMON, depths=[3, 4, 6, 3]),
    'medium': dict(_COMMON, depths=[3, 4, 18, 3]),
    'large': dict(_COMMON, depths=[3, 8, 27, 3]),
}
PVTV2_ARCHS = {
    'b0': dict(_COMMON, depths=[2, 2, 2, 2], embed_dims=[32, 64, 160, 256]),
    'b1': dict(_COMMON, depths=[2, 2, 2, 2]),
    'b2': dict(_COMMON, depths=[3, 4, 6, 3]),
    'b3': dict(_COMMON, depths=[3, 4, 18, 3]),
    'b4': dict(_COMMON, depths=[3, 8, 27, 3]),
    'b5': dict(_COMMON, depths=[3, 6, 40, 3], mlp_ratios=[4, 4, 4, 4]),
}
STRIDES = (4, 2, 2, 2)
_STEM_NORM = dict(type='mmlape.LN', eps=1e-5)
# The published DTN-PVT (DTN, ICLR 2022, appendices A.1 and B): stage 4, which has the class token, keeps LayerNorm.
_DTN_PLACES = [
    dict(num_heads=4, pool=4),
    dict(num_heads=4, pool=2),
    dict(num_heads=5, pool=1),
    None,
]


@MODELS.register_module()
class PyramidVisionTransformer(StagedTransformer):
    """Pyramid Vision Transformer (PVT, ICCV 2021): four stages of strides s = 4, 8, 16 and 32, with a map
    ``(B, C, ceil(H / s), ceil(W / s))`` each.

    Names in the state dict are the published ones (``pos_embed1``, ``block1.0.attn.q.weight``); weights load as they
    are, or by ``mmlape.Pretrained`` with ``source='pvt'``. Options are those of :class:`StagedTransformer`, with

    * ``arch``: ``'tiny'`` (default), ``'small'``, ``'medium'``, ``'large'``, or a dict with ``embed_dims``, ``depths``,
      ``num_heads``, ``mlp_ratios`` and ``sr_ratios``, lists of four.
    * ``position``: a learned table in every stage by default, resized bilinearly, as published.
    * ``norm_cfg``: one ``mmlape.DTN`` goes where the published DTN-PVT has it: into stages 1 to 3, with 4, 4 and 5
      heads and pooling sizes 4, 2 and 1 by default; stage 4 has LayerNorm. In a list, its defaults are the heads of the
      stage's attention and no pooling. The norms of patch embeddings and of spatial reduction are LayerNorm (eps 1e-5).
    * ``prefix``: none by default. A class token takes part in stage 4 but not in its map; published classifiers have
      one.
    * ``out_indices``: (0, 1, 2, 3) by default. Vectors, for classifiers, need ``out_indices=3``, and have a norm.
    * ``num_heads`` (of the four stages; [4, 4, 5, 8] in the published DTN-PVT), ``in_channels``, ``with_cls_token``,
      ``qkv_bias``.
    """

    archs, default_arch = PVT_ARCHS, 'tiny'
    sizes = dict(embed_dims=..., depths=..., num_heads=..., mlp_ratios=..., sr_ratios=...)
    parts = dict(
        StagedTransformer.parts,
        stem=dict(type='mmlape.PatchEmbed', norm_cfg=_STEM_NORM),
        attention=dict(type='mmlape.SpatialReductionAttention'),
        position=dict(type='mmlape.LearnedPosition', resize='bilinear'),
    )
    norm_places = {'mmlape.DTN': _DTN_PLACES}
    outputs = (0, 1, 2, 3)
    pooling, source = 'cls_token', 'pvt'
    timm_rows: ClassVar[tuple[TimmRow, ...]] = (
        TimmRow('pvt_{}', '{}', 'tiny small medium large'),
        # The published DTN-PVT has 4 heads in the first two stages (DTN, ICLR 2022, code).
        TimmRow('pvt_{}_dtn', '{}', 'tiny small medium large', dict(DTN, num_heads=[4, 4, 5, 8])),
    )
    timm_cfg = PYRAMID_CFG
    # Sides of each stage's patches in units of its input.
    patch_sizes = STRIDES

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        num_heads: Sequence[int] | None = None,
        in_channels: int = UNSET,
        with_cls_token: bool = UNSET,
        qkv_bias: bool = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            sizes=dict(num_heads=num_heads),
            stem=dict(in_channels=in_channels),
            prefix=dict(cls_token=with_cls_token),
            attention=dict(qkv_bias=qkv_bias),
        )
        super().__init__(arch, img_size, own, **common)

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        lists = {key: check_stages(key, arch[key]) for key in arch}
        return [
            dict(
                embed_dims=lists['embed_dims'][stage],
                depth=lists['depths'][stage],
                num_heads=lists['num_heads'][stage],
                stem=dict(patch_size=cls.patch_sizes[stage], stride=STRIDES[stage]),
                attention=dict(sr_ratio=lists['sr_ratios'][stage]),
                mlp=dict(ratio=lists['mlp_ratios'][stage]),
            )
            for stage in range(len(STRIDES))
        ]


@MODELS.register_module()
class PyramidVisionTransformerV2(PyramidVisionTransformer):
    """PVTv2 (CVMJ 2022): overlapping patches, a depthwise convolution in each MLP, optionally linear attention.

    Zero-padded convolutions replace the position embedding; one can be added. Names in the state dict are the published
    ones; ``source='pvt'`` and ``source='timm'`` read weights. Options are those of :class:`PyramidVisionTransformer`,
    but for

    * ``arch``: ``'b0'`` to ``'b5'``, or a dict. Default ``'b2'``.
    * ``linear``: linear attention, keys and values from 7 x 7 average-pooled cells ("PVTv2-B2-Li"). Default False.
    * ``position``: none by default; a ``joining`` needs one.
    * ``prefix``: none, because ``mmlape.ConvMlp`` takes no prefix tokens.
    """

    archs, default_arch = PVTV2_ARCHS, 'b2'
    timm_rows = (TimmRow('pvt_v2_{}_dtn', '{}', 'b0 b1 b2 b3 b4 b5', DTN),)
    parts = dict(PyramidVisionTransformer.parts, mlp=dict(type='mmlape.ConvMlp'), position=None)
    patch_sizes = (7, 3, 3, 3)
    stage_norm, final_norm = True, False
    pooling = 'avg'

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        num_heads: Sequence[int] | None = None,
        in_channels: int = UNSET,
        qkv_bias: bool = UNSET,
        linear: bool = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            sizes=dict(num_heads=num_heads),
            stem=dict(in_channels=in_channels),
            attention=dict(qkv_bias=qkv_bias, linear=linear),
            mlp=dict(extra_relu=linear),  # linear attention brings a ReLU with it, as published
        )
        StagedTransformer.__init__(self, arch, img_size, own, **common)

    def init_parameters(self) -> None:
        """The published initial values, convolutions by their fan-out."""
        super().init_parameters()
        for module in self.modules():
            init_convolution(module)


def check_stages(key: str, values: object, count: int = len(STRIDES)) -> list:
    """A list of positive numbers, one for each stage."""
    name = 'num_heads' if key == 'num_heads' else f'arch[{key!r}]'
    if not isinstance(values, (list, tuple)):
        raise TypeError(f'{name} must be a list of {count} values, got {values!r}')
    for value in as_list(name, values, count, 'stages'):
        if key == 'mlp_ratios':
            check_number(name, value, above=0)
        else:
            check_positive_int(name, value)
    return list(values)
