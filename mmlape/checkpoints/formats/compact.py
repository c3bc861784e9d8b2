"""Compact transformers: the published code of ViT-Lite, CVT and CCT."""

from __future__ import annotations

from torch import nn

from mmlape.backbones import CompactTransformer

from .base import Renames, State, need
from .vit import LEFT, PlainViT


class PublishedCompact(PlainViT):
    """The published code, and networks of it with LaPE, whose norms are ``pe_norm.N``."""

    renames: Renames = (
        (r'^classifier\.', ''),
        (r'^class_emb$', 'cls_token'),
        (r'^positional_emb$', 'pos_embed'),
        (r'^attention_pool\.', 'pool.score.'),
        (r'^pe_norm\.', 'position.joining.norms.'),
        (r'^(blocks\.\d+)\.norm1\.', r'\1.norm2.'),
        (r'^(blocks\.\d+)\.pre_norm\.', r'\1.norm1.'),
        (r'^(blocks\.\d+)\.self_attn\.', r'\1.attn.'),
        (r'^(blocks\.\d+)\.linear([12])\.', r'\1.mlp.fc\2.'),
        # Patches have a bias, the convolutions of CCT have none.
        (r'^tokenizer\.conv_layers\.(\d+)\.0\.', r'patch_embed.convs.\1.'),
    )
    may_leave = (
        (r'^fc\.', 'of the classifier'),
        (r'^pool\.', 'the model has no sequence pooling'),
        *LEFT,
    )

    def part(self, model: nn.Module, state: State) -> str:
        """The whole network."""
        return need(model, CompactTransformer)

    def rename(self, state: State) -> State:
        """Names of the model; of patches where the first convolution has a bias."""
        renamed = super().rename(state)
        if 'patch_embed.convs.0.bias' not in renamed:
            return renamed
        return {k.replace('patch_embed.convs.0.', 'patch_embed.proj.'): renamed[k] for k in renamed}
