"""Blocks with several attention layers side by side, and several feed-forward networks after them."""

from __future__ import annotations

import copy
from typing import cast

from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import InsidePlan
from mmlape.registry import MODELS

from .block import Block


@MODELS.register_module()
class SeveralBranchesBlock(Block):
    """``x = x + sum_i attn_i(norm1_i(x) + position);  x = x + sum_i mlp_i(norm2_i(x))``: a network half as deep, of as
    many layers (Three things everyone should know about Vision Transformers, ECCV 2022, section 3).

    The first branches have the names of :class:`Block`, the others are blocks in ``others``.

    Args: those of :class:`Block`, and

        num_branches: Branches side by side, at least 2. Default 2.

    Raises:
        ValueError: If there are fewer than 2 branches.
    """

    def __init__(
        self,
        embed_dims: int,
        attn: nn.Module,
        mlp: nn.Module,
        layer_scale: bool | float | None = None,
        drop_path_rate: float = 0.0,
        norm_cfg: dict | None = None,
        num_branches: int = 2,
    ) -> None:
        super().__init__(embed_dims, attn, mlp, layer_scale, drop_path_rate, norm_cfg)
        others = []
        for _ in range(check_positive_int('num_branches', num_branches, minimum=2) - 1):
            attn, mlp = copy.deepcopy(attn), copy.deepcopy(mlp)
            for part in (attn, mlp):  # branches that are alike would learn alike
                part.apply(_draw_again)
            others.append(Block(embed_dims, attn, mlp, layer_scale, drop_path_rate, norm_cfg))
        self.others = nn.ModuleList(others)

    def forward(
        self,
        tokens: Tensor,
        layout: Layout | Grid,
        position: Tensor | None = None,
        inside: InsidePlan | None = None,
    ) -> Tensor:
        """Transform tokens, see :meth:`Block.forward`."""
        for branch in [each.attended(tokens, layout, position, inside) for each in self.branches()]:
            tokens = tokens + branch
        return self.feed_forward(tokens, layout)

    def feed_forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Tokens ``(B, P + H * W, C)`` after attention and all of the second branches."""
        for branch in [each.fed(tokens, layout) for each in self.branches()]:
            tokens = tokens + branch
        return tokens

    def branches(self) -> list[Block]:
        """Blocks with a branch of each kind, itself first."""
        return [self, *cast('list[Block]', list(self.others))]


def _draw_again(module: nn.Module) -> None:
    reset = getattr(module, 'reset_parameters', None)
    if reset is not None:
        reset()
