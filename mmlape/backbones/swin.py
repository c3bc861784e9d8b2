"""Swin Transformer (ICCV 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from mmlape.checks import check_grid, check_positive_int
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions, StagedTransformer
from .pvt import check_stages
from .spec import UNSET, Parts
from .timm_rows import DTN, LAPE, PYRAMID_CFG, TimmRow

_SIZES = dict(embed_dims=..., depths=..., num_heads=..., mlp_ratio=4, window_size=7)
SWIN_ARCHS = {
    'tiny': dict(embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24]),
    'small': dict(embed_dims=96, depths=[2, 2, 18, 2], num_heads=[3, 6, 12, 24]),
    'base': dict(embed_dims=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]),
    'large': dict(embed_dims=192, depths=[2, 2, 18, 2], num_heads=[6, 12, 24, 48]),
}
_NORM = dict(type='mmlape.LN', eps=1e-5)


@MODELS.register_module()
class SwinTransformer(StagedTransformer):
    """Swin Transformer (ICCV 2021): stages of strides s = 4, 8, 16 and 32, with a map
    ``(B, C, ceil(H / s), ceil(W / s))`` each, which has a norm of its own.

    Weights of the published code, of timm and of MMDetection or MMSegmentation load by ``mmlape.Pretrained`` with
    ``source='swin'``. Options are those of :class:`StagedTransformer`, with

    * ``arch``: ``'tiny'`` (default), ``'small'``, ``'base'``, ``'large'``, or a dict with ``embed_dims`` (channels of
      the first stage; they double with each stage), ``depths``, ``num_heads``, ``mlp_ratio`` (4 if left out) and
      ``window_size`` (7 if left out). Windows of every other layer are shifted by half a window.
    * ``attention_position``: ``mmlape.RelativePositionBias`` of ``std=0.02`` by default, a table for each layer; False
      for none. ``dict(type='mmlape.RelativePositionBias', layer_norm=True)`` is LaPE's form, from zeros.
    * ``position``: none by default. A table, ``dict(type='mmlape.LearnedPosition')``, belongs to the first stage, whose
      tokens carry it on; LaPE joins it in every stage, see ``mmlape.MergedPosition``.
    * ``norm_cfg``: LayerNorm of eps 1e-5 by default. One ``mmlape.DTN`` goes into every block, by default with the
      heads of the stage and pooling sizes 4, 2, 1 and 1 (DTN, ICLR 2022, appendix A.1).
    * ``out_indices``: (0, 1, 2, 3) by default. Vectors, for classifiers, need ``out_indices=3``, and have one norm.
    * ``num_heads``, ``in_channels``, ``window_size``, ``qkv_bias``, ``shift_alone``.
    """

    archs, default_arch, sizes = SWIN_ARCHS, 'tiny', _SIZES
    parts = dict(
        StagedTransformer.parts,
        stem=dict(),
        attention=dict(type='mmlape.ShiftedWindowAttention'),
        attention_position=dict(type='mmlape.RelativePositionBias', std=0.02),
        position=None,
        norm_cfg=_NORM,
    )
    carries_position = True
    norm_places = {'mmlape.DTN': [dict(pool=4), dict(pool=2), dict(pool=1), dict(pool=1)]}
    outputs = (0, 1, 2, 3)
    map_norm = True
    source = 'swin'
    timm_rows = (
        # "Learnable + RPE" of LaPE (ICCV 2023), Table 1; the table is that of the first stage, which tokens carry on.
        TimmRow('lape_swin_{}_patch4_window7_224', '{}', 'tiny small', dict(LAPE, position='learned')),
        TimmRow('dtn_swin_{}_patch4_window7_224', '{}', 'tiny small', DTN),
    )  # fmt: skip
    timm_cfg = PYRAMID_CFG

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        num_heads: Sequence[int] | None = None,
        window_size: int | Grid | None = None,
        in_channels: int = UNSET,
        qkv_bias: bool = UNSET,
        shift_alone: bool = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(
            sizes=dict(num_heads=num_heads, window_size=window_size),
            stem=dict(in_channels=in_channels),
            attention=dict(qkv_bias=qkv_bias, shift_alone=shift_alone),
        )
        super().__init__(arch, img_size, own, **common)

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        check_positive_int("arch['embed_dims']", arch['embed_dims'])
        window = check_grid('window_size', arch['window_size'])
        half = (window[0] // 2, window[1] // 2)
        depths, heads = (check_stages(key, arch[key]) for key in ('depths', 'num_heads'))
        return [
            dict(
                embed_dims=arch['embed_dims'] * 2**stage,
                depth=depth,
                num_heads=heads[stage],
                stem=dict(type='mmlape.PatchMerging')
                if stage
                else dict(type='mmlape.PatchEmbed', patch_size=4, norm_cfg=_NORM),
                attention=[
                    dict(window_size=window, shift=half if layer % 2 else 0)
                    for layer in range(depth)
                ],
                mlp=dict(ratio=arch['mlp_ratio']),
            )
            for stage, depth in enumerate(depths)
        ]
