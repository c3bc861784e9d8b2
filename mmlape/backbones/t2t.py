"""T2T-ViT (ICCV 2021)."""

from __future__ import annotations

from collections.abc import Sequence

from typing_extensions import Unpack

from mmlape.layout import Grid
from mmlape.registry import MODELS

from .network import NetworkOptions
from .spec import UNSET, Parts
from .timm_rows import DTN, LAPE, TimmRow
from .vit import PlainTransformer, VisionTransformer

_PERFORMER = dict(type='mmlape.PerformerTokens')
_TRANSFORMER = dict(type='mmlape.TransformerTokens')
_DIMS_256 = dict(embed_dims=256, num_heads=4, mlp_ratio=2)
_SIZES = {
    14: dict(embed_dims=384, depth=14, num_heads=6, mlp_ratio=3),
    19: dict(embed_dims=448, depth=19, num_heads=7, mlp_ratio=3),
    24: dict(embed_dims=512, depth=24, num_heads=8, mlp_ratio=3),
}
T2T_ARCHS: dict[str, dict] = {
    **{f't2t-vit-{depth}': dict(_DIMS_256, depth=depth) for depth in (7, 10, 12)},
    **{f't2t-vit-{depth}': sizes for depth, sizes in _SIZES.items()},
    **{f't2t-vit-t-{depth}': dict(sizes, tokens=_TRANSFORMER) for depth, sizes in _SIZES.items()},
}


@MODELS.register_module()
class T2TViT(PlainTransformer):
    """Tokens-to-Token ViT (T2T-ViT, ICCV 2021): one stage of stride 16, counted by layers.

    Names in the state dict are the published ones; weights of the published code and of MMPretrain load by
    ``mmlape.Pretrained`` with ``source='t2t'``. Options are those of :class:`StagedTransformer`, with

    * ``arch``: ``'t2t-vit-7'`` (default), ``-10``, ``-12``, ``-14``, ``-19``, ``-24`` with Performer layers between the
      splits of the stem, whose cost is linear in pixels; ``'t2t-vit-t-14'``, ``-19``, ``-24`` with plain transformer
      layers; or a dict with ``embed_dims``, ``depth``, ``num_heads``, ``mlp_ratio`` (3 if left out) and ``tokens``,
      the config of these layers (``mmlape.PerformerTokens`` if left out).
    * ``position``: fixed sinusoids along the sequence, the class token's first; resized bicubically to other grids than
      that of ``img_size``, as in MMPretrain and the published fine-tuning. ``dict(type='mmlape.SinusoidalPosition')``
      continues to count there instead. ``prefix``: a class token by default.
    * ``norm_cfg``: LayerNorm of eps 1e-5 by default, of all layers and the output. One ``mmlape.DTN`` goes by default
      into all layers but the last two, as in ViT (ICLR 2022, appendix A.1). The norms of the stem are LayerNorm.
    * ``in_channels``, ``token_dims`` (64), ``tokens``; the others as in :class:`VisionTransformer`, but ``qkv_bias``
      (False).
    """

    archs, default_arch = T2T_ARCHS, 't2t-vit-7'
    sizes = dict(embed_dims=..., depth=..., num_heads=..., mlp_ratio=3, tokens=_PERFORMER)
    parts = dict(
        VisionTransformer.parts,
        stem=dict(type='mmlape.TokensToToken'),
        attention=dict(type='mmlape.Attention', qkv_bias=False),
        position=dict(type='mmlape.SinusoidalPosition', other_grids='resize'),
        norm_cfg=dict(type='mmlape.LN', eps=1e-5),
    )
    norm_places = VisionTransformer.norm_places
    norm_covers_output = True
    pooling, source = 'cls_token', 't2t'
    timm_rows = (
        TimmRow('t2t_vit_{}', 't2t-vit-{}', '7 14 t-14'),
        TimmRow('lape_t2t_vit_{}', 't2t-vit-{}', '7', LAPE),
        TimmRow('dtn_t2t_vit_{}', 't2t-vit-{}', '14 t-14', DTN),
    )
    timm_cfg = dict(first_conv=None, crop_pct=0.9)
    names = dict(VisionTransformer.names, embed='tokens_to_token')

    def __init__(
        self,
        arch: str | dict | None = None,
        img_size: int | Grid | None = None,
        *,
        in_channels: int = UNSET,
        token_dims: int = UNSET,
        tokens: dict | None = None,
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
            sizes=dict(tokens=tokens),
            stem=dict(in_channels=in_channels, token_dims=token_dims),
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
    def stage_sizes(cls, arch: dict) -> list[dict]:
        """Return one stage, that of a ViT with another stem."""
        (stage,) = super().stage_sizes(arch)
        return [dict(stage, stem=dict(tokens=arch['tokens']))]
