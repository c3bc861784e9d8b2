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

    Weights of the published code load through ``mmlape.Pretrained`` with ``source='ceit'``. Options are those of
    :class:`VisionTransformer`, with

    * ``arch``: ``'ceit-tiny'`` (default), ``'ceit-small'``, or a dict with ``embed_dims``, ``depth``, ``num_heads`` and
      ``mlp_ratio`` (4 if left out).
    * ``stem``: ``mmlape.ImageToTokens``; ``mlp``: ``mmlape.LocallyEnhancedMlp``. Their batch norms keep statistics.
    * ``prefix``: a class token, and ``across_layers=dict(type='mmlape.LayerClassAttention')``, which makes the class
      token of the last layer's output from those after every layer. Maps do not see it. A ``joining`` serves the
      positions of tokens; the embedding of layers is the attention's own, to which LaPE adds no norms.
    * ``norm_cfg``: one ``mmlape.DTN`` goes where it goes in a ViT; that attention keeps LayerNorm.

    With a vector for output, what the last feed-forward network makes of the cells is not read, as published.
    """

    archs, default_arch = CEIT_ARCHS, 'ceit-tiny'
    parts = dict(
        VisionTransformer.parts,
        stem=dict(type='mmlape.ImageToTokens'),
        mlp=dict(type='mmlape.LocallyEnhancedMlp'),
        prefix=dict(cls_token=True, across_layers=dict(type='mmlape.LayerClassAttention')),
    )
    source = 'ceit'
