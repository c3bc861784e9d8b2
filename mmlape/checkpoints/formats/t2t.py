"""T2T-ViT: the published code and MMPretrain, whose names do not overlap."""

from __future__ import annotations

from torch import nn

from mmlape.backbones import T2TViT

from .base import State, need
from .vit import LEFT, PlainViT


class PublishedT2T(PlainViT):
    """T2T-ViTs with both kinds of tokens; norms of LaPE as ``pe_norm.N`` beside the blocks."""

    renames = (
        (r'^pe_norm\.(\d+)\.', r'position.joining.norms.\1.'),
        (r'^encoder\.', 'blocks.'),
        (r'\.ln([12])\.', r'.norm\1.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
    )
    may_leave = (*LEFT, (r'^pos_embed$', 'computed, not learned'))

    def part(self, model: nn.Module, state: State) -> str:
        """The whole network."""
        return need(model, T2TViT)
