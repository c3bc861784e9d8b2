"""The published DTN code: DTN and the normalisers it was compared with, alone or in a network of ours."""

from __future__ import annotations

import re

from torch import nn

from mmlape.norm import DTN, LN, TokenNorm

from .base import Format, State

# Parameters of the published DTN module; the bias of its position projection cancels in the softmax and is not used.
DTN_RENAMES = (
    (r'\bmean_norm_weight$', 'ratio_mean.omega'),
    (r'\bvar_norm_weight$', 'ratio_var.omega'),
    (r'\bpos_proj\.weight$', 'positions.weight'),
)
DTN_LEFT = (r'\bpos_proj\.bias$', 'cancels in the softmax')


class PublishedDTN(Format):
    """DTN and other token norms of the published DTN code."""

    renames = (
        *DTN_RENAMES,
        (r'\bbn\.(running_mean|running_var|num_batches_tracked)$', r'\1'),
        (r'\bscale$', 'weight'),
        (r'\brunning_phi$', 'running_square'),
        (r'\bema_gz$', 'running_along'),
        (r'\biters$', 'num_calls'),
    )
    may_leave = (DTN_LEFT,)

    def part(self, model: nn.Module, state: State) -> str:
        """The whole model, which is or has a token norm."""
        if not any(isinstance(module, (DTN, LN, TokenNorm)) for module in model.modules()):
            raise ValueError(
                f'a {type(model).__name__} has no token norm that this source describes'
            )
        return ''

    def rename(self, state: State) -> State:
        """Our names; PowerNorm's buffers lose their dimensions of size 1."""
        renamed = super().rename(state)
        for name, tensor in renamed.items():
            if re.search(r'\b(running_square|running_along|num_calls)$', name):
                renamed[name] = tensor.squeeze()
        return renamed
