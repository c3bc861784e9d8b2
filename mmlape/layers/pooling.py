"""Tokens to one vector, by weights that are learned."""

from __future__ import annotations

from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS


@MODELS.register_module()
class SequencePooling(nn.Module):
    """A mean of the cells, weighted by a softmax of a learned score of each (Compact Transformers, arXiv 2021, section
    3.2). Prefix tokens and cells that a mask hides take no part.

    Args:
        embed_dims: Channels ``C``.
    """

    def __init__(self, embed_dims: int) -> None:
        super().__init__()
        self.score = nn.Linear(check_positive_int('embed_dims', embed_dims), 1)
        nn.init.trunc_normal_(self.score.weight, std=0.02)
        nn.init.zeros_(self.score.bias)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """``(B, P + H * W, C)`` to ``(B, C)``."""
        layout = Layout.of(tokens, layout)
        cells = layout.split(tokens)[1]
        scores = self.score(cells)
        if layout.mask is not None:
            scores = scores.masked_fill(~layout.mask.unsqueeze(-1), -float('inf'))
        return (scores.softmax(dim=1) * cells).sum(dim=1)
