"""CeiT (ICCV 2021)."""

from __future__ import annotations

from mmlape.registry import MODELS

from .vit import VisionTransformer

CEIT_ARCHS = {
    'ceit-tiny': dict(embed_dims=192, depth=12, num_heads=3, mlp_ratio=4),
    'ceit-small': dict(embed_dims=384, depth=12, num_heads=6, mlp_ratio=4),
}


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
