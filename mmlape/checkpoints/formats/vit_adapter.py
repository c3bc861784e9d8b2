"""The published ViT-Adapter code: a backbone alone, or a whole MMDetection 2 detector or MMSegmentation 0 segmentor."""

from __future__ import annotations

from torch import nn

from mmlape.backbones import ViTAdapter

from .base import Format, State, need


class ReferenceViTAdapter(Format):
    """The published backbone, in which the ViT is not a part but the base class; necks and heads kept their names."""

    renames = (
        (r'^(blocks\.\d+)\.gamma([12])$', r'\1.ls\2.gamma'),
        (r'^(blocks\.|patch_embed\.|pos_embed$|cls_token$)', r'vit.\1'),
    )
    may_leave = (
        (r'^vit\.cls_token$', 'the model has no such token'),
        (r'^(spm\.fc1|up|norm[1-4])\.', "not among the model's out_indices"),
    )
    leaves_others = False

    def part(self, model: nn.Module, state: State) -> str:
        """The whole adapter."""
        return need(model, ViTAdapter)
