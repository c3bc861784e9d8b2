"""Position inside the attention: the base class of biases and rotary position."""

from __future__ import annotations

from abc import ABC
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from mmlape.checks import check_divisor, check_grid, check_positive_int
from mmlape.layout import Grid, Layout

from .joining import PlanCachingModule


class AttentionPlan(NamedTuple):
    """A position prepared for the queries and keys of a pass: all that an attention layer sees of it.

    Attributes:
        position: The module.
        rows: Result of its :meth:`~AttentionPosition.prepare`.
        drawn: Random numbers of the pass, for keys on another grid.
        mask: Added to the scores beside the position's bias, ``(B, 1, queries, keys)``: 0, or minus infinity for what a
            query must not read (EoMT's masked attention). Every query must have a key. Default None.
    """

    position: AttentionPosition | None
    rows: Any
    drawn: Any = None
    mask: Tensor | None = None

    @property
    def changes_queries(self) -> bool:
        """Whether :meth:`place` changes anything."""
        return self.position is not None and self.position.changes_queries

    def place(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """:meth:`AttentionPosition.place` with the prepared rows."""
        if self.position is None:
            return query, key, value
        return self.position.place(query, key, value, self.rows)

    def bias(self, query: Layout, key: Layout) -> Tensor | None:
        """Added to the scores, ``(1 or B, 1 or heads, queries, keys)``, or None."""
        position = self.position
        if position is None:
            return self.mask
        where = (query.grid, query.num_prefix, key.grid, key.num_prefix)
        bias = position.planned(('bias', *where), lambda: position.bias(query, key, self.rows))
        if bias is None or self.mask is None:
            return self.mask if bias is None else bias
        return bias + self.mask

    def prefix_bias(self, layout: Layout) -> Tensor | None:
        """:meth:`AttentionPosition.prefix_bias`."""
        return None if self.position is None else self.position.prefix_bias(layout)

    def within(self, layout: Layout) -> AttentionPlan:
        """The same position, with the same random numbers, for tokens of another layout."""
        return self if self.position is None else self.position(layout, drawn=self.drawn)


class AttentionPosition(PlanCachingModule, ABC):
    """Changes queries, keys, values and scores of an attention layer. A subclass overrides

    * :meth:`prepare` and :meth:`place`, for rows per token (rotary turns, channels beside queries and keys): made for
      all tokens before a layer cuts windows, so that coordinates are those of the image;
    * :meth:`bias`, added to the scores: made for the tokens that attend to one another, in windows those of a window.

    Keys may lie on a coarser grid than queries (PVT). Both are taken to cover the image; coordinates are in cells of
    the queries. (Where the spatial reduction pads the grid, the last keys really lie up to half a window farther.)

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads of the attention.
        grid: Pre-training grid ``(H0, W0)`` of the image in tokens.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Of a layer that attends in windows. Default None.

    Attributes:
        shared: One module serves all layers of a stage and prepares once per pass; else every layer has its own.
            Default False.
        changes_queries: :meth:`place` changes something. Default True.

    Raises:
        ValueError: If a size is not positive, or the heads do not divide the channels although it ``changes_queries``.
    """

    shared: ClassVar[bool] = False
    changes_queries: ClassVar[bool] = True
    no_weight_decay: ClassVar[tuple[str, ...]] = ('',)

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
    ) -> None:
        super().__init__()
        self.embed_dims = check_positive_int('embed_dims', embed_dims)
        self.num_heads = check_positive_int('num_heads', num_heads)
        if self.changes_queries:
            check_divisor('num_heads', num_heads, 'embed_dims', embed_dims)
        self.num_prefix_tokens = check_positive_int(
            'num_prefix_tokens', num_prefix_tokens, minimum=0
        )
        self.window_size = None if window_size is None else check_grid('window_size', window_size)
        self.grid = check_grid('grid', grid)

    def forward(self, query: Layout, key: Layout | None = None, drawn: Any = None) -> AttentionPlan:
        """Prepare for the layouts of queries and of keys (default: the same); ``drawn``: :meth:`draw` of this pass."""
        key = query if key is None else key
        if drawn is not None:  # valid for one pass, so not cached
            return AttentionPlan(self, self.prepare(query, key, drawn), drawn)
        where = (query.grid, query.num_prefix, key.grid, key.num_prefix)
        return AttentionPlan(self, self.planned(('rows', *where), lambda: self.prepare(query, key)))

    def draw(self) -> Any:
        """Random numbers of a pass, for all layers that share this position. Default None."""
        return None

    def prepare(self, query: Layout, key: Layout, drawn: Any = None) -> Any:
        """Anything that :meth:`place` and :meth:`bias` need for these layouts, as ``rows``. Default None."""
        return None

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Change queries, keys and values, ``(B, heads, tokens, C / heads)`` each.

        Queries and keys may become wider (the scores' factor stays ``(C / heads) ** -0.5``), values may not.
        """
        return query, key, value

    def bias(self, query: Layout, key: Layout, rows: Any = None) -> Tensor | None:
        """Added to the scores, ``(1, heads, query.num_tokens, key.num_tokens)``. Default None."""
        return None

    def prefix_bias(self, layout: Layout) -> Tensor | None:
        """Added to the scores of prefix tokens that attend to all tokens while cells attend in windows,
        ``(1, heads, P, P + H * W)``. Default None."""
        return None
