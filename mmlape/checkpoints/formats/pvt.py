"""Pyramids: the published PVT, PVTv2 and DTN-PVT code, and timm's PVTv2."""

from __future__ import annotations

from torch import nn

from mmlape.backbones import PyramidVisionTransformer

from .base import Format, Renames, State, need
from .dtn import DTN_LEFT, DTN_RENAMES


class PublishedPVT(Format):
    """The published PVT, PVTv2 and DTN-PVT code, whose names are ours outside DTN."""

    renames: Renames = DTN_RENAMES
    may_leave = (
        DTN_LEFT,
        (r'^(head|norm)\.|^cls_token$', 'of the classifier'),
        (r'^pos_embed', 'the position of the model is no learned table'),
    )
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The adapter of timm's layout."""
        return TimmPVT() if any(name.startswith('stages.') for name in state) else self

    def part(self, model: nn.Module, state: State) -> str:
        """The whole pyramid."""
        return need(model, PyramidVisionTransformer)


class TimmPVT(PublishedPVT):
    """timm's PVTv2, whose stages are counted from 0 and hold their parts."""

    renames = (
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.norm\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'\.mlp\.dwconv\.', '.mlp.dwconv.dwconv.'),
    )
