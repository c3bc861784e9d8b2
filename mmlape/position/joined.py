"""A position embedding together with the way it joins the layers of a stage."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .embeddings import MergedPosition
from .plan import PlanKeeper, PositionPlan


class JoinedPosition(PlanKeeper):
    """Answers, for a layout, what is added where in the layers of a stage.

    Args:
        embed_dims: Channels ``C``.
        depth: Number of layers.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: Prefix tokens ``P`` of the stage. Default 0.
        position: Config of a position embedding. Default ``mmlape.LearnedPosition``.
        joining: Config of a joining method. Default ``mmlape.DefaultJoining``.
    """

    def __init__(
        self,
        embed_dims: int,
        depth: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        position: dict | None = None,
        joining: dict | None = None,
    ) -> None:
        super().__init__()
        self.depth = check_positive_int('depth', depth)
        position = dict(type='mmlape.LearnedPosition') if position is None else position
        joining = dict(type='mmlape.DefaultJoining') if joining is None else joining
        self.joining = MODELS.build(dict(joining, embed_dims=embed_dims, depth=depth))
        self.embedding = MODELS.build(
            dict(
                position,
                embed_dims=embed_dims,
                grid=grid,
                num_prefix_tokens=num_prefix_tokens,
                num_tables=self.joining.num_tables,
            )
        )

    def forward(
        self,
        layout: Layout | Grid,
        before: Tensor | None = None,
        merge: Callable[[Tensor], tuple[Tensor, Layout]] | None = None,
    ) -> PositionPlan:
        """The plan for a layout, or for a grid ``(H, W)``; it always has the rows of all prefix tokens.

        Args:
            layout: Of the tokens.
            before: Map ``(1, C', H', W')`` of what the stage before passes on, for a
                :class:`~mmlape.position.MergedPosition`. Default None, nothing.
            merge: What makes the tokens of the stage out of such a map.
        """
        grid = tuple(layout)
        if not isinstance(self.embedding, MergedPosition):
            return self.planned(grid, lambda: self.joining(self.embedding(grid)))
        if before is None or merge is None:
            return PositionPlan.nothing(self.depth)
        key = (grid, before.shape[2:])
        return self.planned(key, lambda: self.joining(merge(before)[0]))
