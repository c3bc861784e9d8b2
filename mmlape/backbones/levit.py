"""LeViT (ICCV 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from mmlape.checks import check_number, check_positive_int
from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions, StagedTransformer
from .pvt import check_stages
from .spec import UNSET, Parts
from .timm_rows import DTN, TimmRow

_STAGES = 3
_SIZES = dict(embed_dims=..., depths=..., num_heads=..., key_dims=..., value_ratio=2, mlp_ratio=2)


def _arch(embed_dims: list[int], depths: list[int], num_heads: list[int], key_dims: int) -> dict:
    """An architecture, with 32 channels per head of DTN: the attention's heads need not divide the channels."""
    heads = [dict(num_heads=dims // 32) for dims in embed_dims]
    sizes = dict(embed_dims=embed_dims, depths=depths, num_heads=num_heads, key_dims=key_dims)
    return dict(sizes, norm_places={'mmlape.DTN': heads})


LEVIT_ARCHS = {
    'levit-128s': _arch([128, 256, 384], [2, 3, 4], [4, 6, 8], 16),
    'levit-128': _arch([128, 256, 384], [4, 4, 4], [4, 8, 12], 16),
    'levit-192': _arch([192, 288, 384], [4, 4, 4], [3, 5, 6], 32),
    'levit-256': _arch([256, 384, 512], [4, 4, 4], [4, 6, 8], 32),
    'levit-384': _arch([384, 512, 768], [4, 4, 4], [6, 9, 12], 32),
}


@MODELS.register_module()
class LeViT(StagedTransformer):
    """LeViT (ICCV 2021): stages of strides s = 16, 32 and 64, with a map ``(B, C, ceil(H / s), ceil(W / s))`` each.

    Its classifiers have ``out_type='avg', out_indices=2``; no dense prediction with it was published. Weights of the
    published code and of timm load by ``mmlape.Pretrained`` with ``source='levit'``. Options are those of
    :class:`StagedTransformer`, with

    * ``arch``: ``'levit-128s'`` (default), ``'levit-128'``, ``'levit-192'``, ``'levit-256'``, ``'levit-384'``, or a
      dict with ``embed_dims``, ``depths`` and ``num_heads``, lists of three, ``key_dims`` (channels of a head's queries
      and keys), ``value_ratio`` (channels of its values to those; 2 if left out) and ``mlp_ratio`` (2 if left out).
    * ``stem``: ``mmlape.ConvStem``, then ``mmlape.AttentionSubsampling``, whose values are 4 times as wide as its keys.
    * ``attention_position``: ``mmlape.RelativePositionBias`` by default, in which offsets that differ only in signs
      share a value; it is resized to other grids. It must be one that adds to scores.
    * ``position``: none by default; a single one is built for each stage, on its own grid.
    * ``norm_cfg``: at the end of both branches of each layer (``mmlape.PostNormBlock``); ``mmlape.TokenBN`` by default.
      One ``mmlape.DTN`` goes into all layers, with 32 channels per head by default; its paper (ICLR 2022, Tables 10 and
      12) does not say where it goes in LeViT. Other norms stay batch norms.
    * ``out_indices``: (0, 1, 2) by default. The output has no norm: heads begin with one.
    * ``num_heads``, ``in_channels``.
    """

    archs, default_arch, sizes = LEVIT_ARCHS, 'levit-128s', _SIZES
    parts = dict(
        StagedTransformer.parts,
        stem=dict(),
        attention=dict(type='mmlape.WideValueAttention'),
        attention_position=dict(type='mmlape.RelativePositionBias', mirrored=True),
        mlp=dict(type='mmlape.NormedMlp'),
        block=dict(type='mmlape.PostNormBlock'),
        position=None,
        norm_cfg=dict(type='mmlape.TokenBN'),
    )
    outputs = (0, 1, 2)
    final_norm = False
    normed_head, source = True, 'levit'
    timm_rows = (TimmRow('dtn_levit_{}', 'levit-{}', '128s', dict(DTN, distilled=True)),)
    timm_cfg = dict(
        first_conv='backbone.patch_embed1.convs.0',
        pool_size=(4, 4),
        classifier=('head.linear', 'head_dist.linear'),
    )

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        num_heads: Sequence[int] | None = None,
        in_channels: int = UNSET,
        **common: Unpack[NetworkOptions],
    ) -> None:
        own = Parts(sizes=dict(num_heads=num_heads), stem=dict(in_channels=in_channels))
        super().__init__(arch, img_size, own, **common)

    @classmethod
    def stage_sizes(cls, arch: dict) -> list[dict]:
        dims, depths, heads = (
            check_stages(key, arch[key], _STAGES) for key in ('embed_dims', 'depths', 'num_heads')
        )
        for key in ('value_ratio', 'mlp_ratio'):
            check_number(f'arch[{key!r}]', arch[key], above=0)
        key_dims = check_positive_int("arch['key_dims']", arch['key_dims'])
        shrinking = dict(type='mmlape.AttentionSubsampling', key_dims=key_dims)
        return [
            dict(
                embed_dims=dims[stage],
                depth=depths[stage],
                num_heads=heads[stage],
                stem=shrinking if stage else dict(type='mmlape.ConvStem'),
                attention=dict(key_dims=key_dims, value_ratio=float(arch['value_ratio'])),
                mlp=dict(ratio=arch['mlp_ratio']),
            )
            for stage in range(_STAGES)
        ]
