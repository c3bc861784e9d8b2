"""Pyramids: the published PVT, PVTv2 and DTN-PVT code, and timm's PVTv2."""

from __future__ import annotations

import re

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
    )
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The adapter of timm's layout."""
        return TimmPVT() if any(name.startswith('stages.') for name in state) else self

    def part(self, model: nn.Module, state: State) -> str:
        """The whole pyramid."""
        return need(model, PyramidVisionTransformer)

    def leave(self, name: str, model: nn.Module) -> tuple[str, str]:
        """As for others; stages that are not built, and position tables of a model without, may be left out too."""
        stage = re.match(r'(?:patch_embed|block|norm|pos_embed)(\d)\b', name)
        if (
            stage
            and isinstance(model, PyramidVisionTransformer)
            and int(stage[1]) > model.num_stages
        ):
            return 'stages after the last output are not built', ''
        if name.startswith('pos_embed'):
            return 'the position of the model is no learned table', ''
        return super().leave(name, model)


class TimmPVT(PublishedPVT):
    """timm's PVTv2, whose stages are counted from 0 and hold their parts."""

    renames = (
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^stages\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^stages\.(\d)\.norm\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'\.mlp\.dwconv\.', '.mlp.dwconv.dwconv.'),
    )
