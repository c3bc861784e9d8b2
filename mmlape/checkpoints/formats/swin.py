"""Swin Transformers: the published code, timm, MMDetection and MMSegmentation, whose names tell them apart."""

from __future__ import annotations

import re

from torch import Tensor, nn

from mmlape.backbones import SwinTransformer

from .base import Format, Reasons, Renames, State, need

_LEFT: Reasons = (
    (r'relative_position_index$|attn_mask$', 'made anew from the window'),
    (r'^(head|norm)\.', 'of the classifier'),
    (r'^norm\d\.', 'the model returns no map of this stage'),
    (r'\.attn\.position\.', 'the model has no relative bias'),
    (r'^pos_embed1$', 'the model has no position table'),
)


class PublishedSwin(Format):
    """The published code: a stage ends with the merging of its patches. Its detectors have norms of maps."""

    renames: Renames = (
        (r'^layers\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 2}.'),
        (r'^layers\.(\d)\.blocks\.', lambda found: f'block{int(found[1]) + 1}.'),
        (r'^norm(\d)\.', lambda found: f'norm{int(found[1]) + 1}.'),
        (r'^patch_embed\.', 'patch_embed1.'),
        (r'^absolute_pos_embed$', 'pos_embed1'),
        (r'\.attn\.relative_position_bias_table$', '.attn.position.relative_position_bias_table'),
    )
    may_leave = _LEFT
    leaves_others = False

    def resolve(self, state: State) -> Format:
        """The layout of ``state``."""
        if any(name.startswith('stages.') for name in state):
            return OpenMMLabSwin()
        starts = any(name.startswith('layers.3.downsample.') for name in state)
        return TimmSwin() if starts else self

    def part(self, model: nn.Module, state: State) -> str:
        """The whole network."""
        return need(model, SwinTransformer)


class TimmSwin(PublishedSwin):
    """timm's, whose stages begin with the merging of patches."""

    renames = (
        (r'^layers\.(\d)\.downsample\.', lambda found: f'patch_embed{int(found[1]) + 1}.'),
        *PublishedSwin.renames,
    )


class OpenMMLabSwin(PublishedSwin):
    """``SwinTransformer`` of MMDetection and MMSegmentation: channels of four neighbours lie side by side."""

    renames = (
        (r'^stages\.', 'layers.'),
        (r'^patch_embed\.projection\.', 'patch_embed.proj.'),
        (r'\.attn\.w_msa\.', '.attn.'),
        (r'\.ffn\.layers\.0\.0\.', '.mlp.fc1.'),
        (r'\.ffn\.layers\.1\.', '.mlp.fc2.'),
        *PublishedSwin.renames,
    )

    def rename(self, state: State) -> State:
        """Names of the model; merging with our order of channels."""
        renamed = super().rename(state)
        return {
            name: _by_neighbour(tensor) if re.match(r'patch_embed[234]\.', name) else tensor
            for name, tensor in renamed.items()
        }


def _by_neighbour(tensor: Tensor) -> Tensor:
    """``(..., C x row x column)`` to ``(..., column x row x C)``."""
    return tensor.unflatten(-1, (-1, 2, 2)).transpose(-1, -3).flatten(-3)
