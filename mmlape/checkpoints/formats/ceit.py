"""CeiT under the names of the published code, with the norms of LaPE where it was trained with them."""

from __future__ import annotations

import re

from torch import nn

from mmlape.backbones import CeiT

from .base import State, need
from .vit import LEFT, PlainViT

_POINTWISE = re.compile(r'\.leff\.conv[13]\.weight$')


class PublishedCeiT(PlainViT):
    """The published code: 1 x 1 convolutions for linear layers, whose norms stand beside them."""

    renames = (
        (r'^i2t\.backbone\.conv\.', 'patch_embed.conv.'),
        (r'^i2t\.backbone\.bn\.', 'patch_embed.norm.'),
        (r'^i2t\.proj\.', 'patch_embed.patches.proj.'),
        (r'\.leff\.conv1\.', '.mlp.fc1.'),
        (r'\.leff\.bn1\.', '.mlp.fc1.norm.'),
        (r'\.leff\.conv2\.', '.mlp.conv.'),
        (r'\.leff\.bn2\.', '.mlp.norm.'),
        (r'\.leff\.conv3\.', '.mlp.fc2.'),
        (r'\.leff\.bn3\.', '.mlp.fc2.norm.'),
        (r'^lca\.feedforward\.', 'across_layers.block.mlp.'),
        (r'^lca\.', 'across_layers.block.'),
        (r'^pos_layer_embed$', 'across_layers.layer_position'),
        (r'^pe_norm\.(\d+)\.', r'position.joining.norms.\1.'),
    )
    may_leave = (*LEFT, (r'^across_layers\.', 'the output of the model shows no class token'))

    def part(self, model: nn.Module, state: State) -> str:
        """The whole network."""
        return need(model, CeiT)

    def rename(self, state: State) -> State:
        """Names of the model; a 1 x 1 convolution is a linear layer."""
        linear = {
            name: tensor.flatten(1) if _POINTWISE.search(name) else tensor
            for name, tensor in state.items()
        }
        return super().rename(linear)
