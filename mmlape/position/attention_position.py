"""Position inside the attention: the base class of biases and rotary turns, and random coordinates for training."""

from __future__ import annotations

import math
from abc import ABC
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from mmlape.checks import check_grid, check_number, check_positive_int
from mmlape.layout import Grid, Layout

from .joining import PlanKeeper


class InsidePlan(NamedTuple):
    """A position that is ready for the queries and keys of a pass; an attention layer sees nothing else of it.

    Attributes:
        position: The module.
        rows: What it prepared.
        drawn: What is random of the pass, for keys on another grid.
    """

    position: AttentionPosition
    rows: Any
    drawn: Any = None

    def place(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values with what position does to them, ``(B, heads, tokens, channels)`` each."""
        return self.position.place(query, key, value, self.rows)

    def bias(self, query: Layout, key: Layout) -> Tensor | None:
        """What is added to the scores, ``(1, heads, queries, keys)``, or None."""
        position = self.position
        where = (query.grid, query.num_prefix, key.grid, key.num_prefix)
        return position.planned(('bias', *where), lambda: position.bias_with(self.rows, query, key))


class AttentionPosition(PlanKeeper, ABC):
    """What a position does to queries, keys, values and scores of an attention layer. A subclass overrides

    * :meth:`prepare` and :meth:`place`, for what has a row per token (turns, channels beside queries and keys): made
      for all tokens, before a layer cuts windows, so that places are those of the image;
    * :meth:`bias`, for what is added to the scores: made for the tokens that attend to one another, so that in a layer
      with windows it knows offsets in a window alone.

    Keys may lie on a coarser grid than queries (PVT); both cover the image, coordinates are in cells of the queries.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads of the attention.
        grid: Pre-training grid ``(H0, W0)`` of the image in tokens.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Of a layer that attends in windows. Default None.

    Attributes:
        shared: Whether one module serves all layers of a stage. What it prepares is then made once per pass; else every
            layer has a module of its own. Default False.
        places: Whether :meth:`place` does anything. Default True.
    """

    shared: ClassVar[bool] = False
    places: ClassVar[bool] = True
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
        if self.places and embed_dims % num_heads:  # heads have channels
            raise ValueError(
                f'num_heads must divide embed_dims, got num_heads={num_heads}, embed_dims={embed_dims}'
            )
        self.num_prefix_tokens = check_positive_int(
            'num_prefix_tokens', num_prefix_tokens, minimum=0
        )
        self.window_size = None if window_size is None else check_grid('window_size', window_size)
        self.grid = check_grid('grid', grid)

    def forward(self, query: Layout, key: Layout | None = None, drawn: Any = None) -> InsidePlan:
        """Ready for tokens that lie as ``query`` and read from tokens that lie as ``key`` (default: the same).

        Args:
            query: Where queries lie.
            key: Where keys lie.
            drawn: What :meth:`draw` gave for this pass. Default None.
        """
        key = query if key is None else key
        if drawn is not None:  # of one pass: nothing to keep
            return InsidePlan(self, self.prepare_with(drawn, query, key), drawn)
        where = (query.grid, query.num_prefix, key.grid, key.num_prefix)
        return InsidePlan(self, self.planned(('rows', *where), lambda: self.prepare(query, key)))

    def draw(self) -> Any:
        """What is random of a pass through all layers, of a position that is ``shared``; None (default) for nothing."""
        return None

    def prepare(self, query: Layout, key: Layout) -> Any:
        """Whatever :meth:`place` and :meth:`bias_with` need for these layouts. Default nothing."""
        return None

    def prepare_with(self, drawn: Any, query: Layout, key: Layout) -> Any:
        """:meth:`prepare`, with what was drawn for the pass. Default: it makes no difference."""
        return self.prepare(query, key)

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Apply to ``(B, heads, tokens, C / heads)`` each.

        Returns:
            Queries and keys, which may have become wider (the scores' factor stays ``(C / heads) ** -0.5``), and values
            of the same width.
        """
        return query, key, value

    def bias(self, query: Layout, key: Layout) -> Tensor | None:
        """What is added to the scores, ``(1, heads, query.num_tokens, key.num_tokens)``. Default None, nothing."""
        return None

    def bias_with(self, rows: Any, query: Layout, key: Layout) -> Tensor | None:
        """:meth:`bias`, of what :meth:`prepare` made for all layers. Default: it needs nothing of that."""
        return self.bias(query, key)


def centres(count: int, extent: int, device: torch.device) -> Tensor:
    """Where ``count`` equal parts of ``extent`` cells have their centres, in cells, ``(count,)``; 0, 1, ... for as many
    parts as cells."""
    steps = torch.arange(count, device=device, dtype=torch.float32)
    return steps if count == extent else (steps + 0.5) * (extent / count) - 0.5


class RandomCoordinates:
    """How far the coordinates of a pass are moved and stretched, those of all cells alike.

    Numbers are drawn by timm's steps from torch's generator of the CPU, whatever the device: equal seeds give equal
    coordinates. What is left out draws nothing.

    Args:
        shift: Largest shift, of each axis by itself. Default 0.
        jitter: Largest factor, of each axis by itself; as likely as its inverse. Default 1.
        rescale: Largest factor of both axes, likewise. Default 1.

    Raises:
        ValueError: If ``shift`` is below 0, or a factor below 1.
    """

    def __init__(self, shift: float = 0.0, jitter: float = 1.0, rescale: float = 1.0) -> None:
        self.shift = check_number('shift', shift, minimum=0)
        self.jitter = check_number('jitter', jitter, minimum=1)
        self.rescale = check_number('rescale', rescale, minimum=1)

    def draw(self) -> tuple[Tensor, Tensor]:
        """What is added to the coordinates ``(N, 2)``, and by what they are multiplied then, ``(2,)`` each."""
        shift, factor = torch.zeros(2), torch.ones(2)
        if self.shift:
            shift.uniform_(-self.shift, self.shift)
        for largest, axes in ((self.jitter, 2), (self.rescale, 1)):
            if largest > 1:
                power = math.log(largest)
                factor = factor * torch.empty(axes).uniform_(-power, power).exp()
        return shift, factor
