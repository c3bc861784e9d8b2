"""A stage of a network: tokens on one grid, their position, and the blocks that they run through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.layers import Stem
from mmlape.layout import Layout
from mmlape.position import AttentionPlan, AttentionPosition, JoinedPosition, PositionPlan
from mmlape.runtime.compile import run_block

Part = nn.Module | nn.Parameter
Rows = TypeVar('Rows', Tensor, Tensor | None)


class StagePlan(NamedTuple):
    """Position of a pass, as it is added.

    Attributes:
        position: To the tokens, see :class:`~mmlape.position.PositionPlan`; it has rows for all prefix tokens.
        attention_plans: Inside the attention of all layers, by the number of present prefix tokens; may be empty.
    """

    position: PositionPlan
    attention_plans: dict[int, AttentionPlan]


@dataclass(frozen=True)
class Stage:
    """A view of the modules of a network that serve one grid, with the only loop over blocks.

    Attributes:
        name: Path of the blocks in the network: ``'blocks'``, ``'block1'``, ``'vit.blocks'``.
        position_name: Path of the position, even if there is none.
        embed_dims: Channels ``C`` of its tokens.
        embed: From the image, or the map of the stage before, to tokens and their layout.
        blocks: Called as ``block(tokens, layout, position)``.
        position: An embedding and its joining, or None.
        attention_position: A position inside the attention that all blocks share, or None.
        prefix: Class, distillation and register tokens, ``(1, n, C)`` each, in this order.
        prefix_after: Number of first blocks that run without them.
        first_norm: Norm of the tokens before the first block, or None.
        dropout: Of tokens with their position.
        norm: Norm of the tokens after the last block, or None.
        with_cp: Recompute each block in the backward pass.
        compile_blocks: Compile them, see :func:`~mmlape.runtime.compile.run_block`.
    """

    name: str
    position_name: str
    embed_dims: int
    embed: Stem
    blocks: nn.ModuleList
    position: JoinedPosition | None = None
    attention_position: AttentionPosition | None = None
    prefix: tuple[nn.Parameter, ...] = ()
    prefix_after: int = 0
    first_norm: nn.Module | None = None
    dropout: nn.Module = field(default_factory=nn.Identity)
    norm: nn.Module | None = None
    with_cp: bool = False
    compile_blocks: bool | dict = False

    @property
    def num_prefix(self) -> int:
        """Number ``P`` of prefix tokens."""
        # torch.jit.trace makes tensors of sizes.
        return sum([int(token.shape[1]) for token in self.prefix])

    def begin(self, maps: Tensor, before: Tensor | None = None) -> tuple[Tensor, Layout, StagePlan]:
        """Tokens with their position, as they enter the first block, and what position adds later.

        Args:
            maps: The image, or the map of the stage before.
            before: Position of the stage before, see :meth:`carried`. Default None.
        """
        tokens, layout = self.embed(maps)
        if self.prefix and not self.prefix_after:
            layout = layout.with_prefix(self.num_prefix)
            tokens = layout.join(self._prefix_tokens(tokens.shape[0]), tokens)
        if self.position is None:
            position = PositionPlan.nothing(len(self.blocks))
        else:
            position = self.position(layout, before, self.embed)
        plans = {}
        if self.attention_position is not None:
            # drawn once, so that tokens see the same random coordinates before and after prefix tokens enter
            counts, drawn = {layout.num_prefix, self.num_prefix}, self.attention_position.draw()
            plans = {n: self.attention_position(layout.with_prefix(n), drawn=drawn) for n in counts}
        if position.stem is not None:
            stem = self._rows(position.stem, layout) if self.prefix_after else position.stem
            tokens = tokens + stem
        return self._enter(tokens, layout), layout, StagePlan(position, plans)

    def run(
        self,
        tokens: Tensor,
        layout: Layout,
        plan: StagePlan,
        first: int = 0,
        end: int | None = None,
    ) -> tuple[Tensor, Layout]:
        """Run the blocks ``first`` to ``end - 1``; prefix tokens enter before block ``prefix_after``."""
        position, attention_plans = plan
        plain = not self.with_cp and self.compile_blocks is False
        for layer in range(first, len(self.blocks) if end is None else end):
            if 0 < layer == self.prefix_after and self.prefix:
                tokens, layout = self._add_prefix(tokens, layout, position)
            entering, attended = position.stream[layer], position.attention[layer]
            if layer < self.prefix_after:
                entering, attended = self._rows(entering, layout), self._rows(attended, layout)
            if entering is not None:
                tokens = tokens + entering
            arguments: tuple = (tokens, layout, attended)
            if attention_plans:
                arguments = (*arguments, attention_plans[layout.num_prefix])
            block = self.blocks[layer]
            if plain:
                tokens = block(*arguments)
            else:
                tokens = run_block(
                    block, *arguments, with_cp=self.with_cp, compile_blocks=self.compile_blocks
                )
        return tokens, layout

    def add_queries(
        self, tokens: Tensor, layout: Layout, plan: StagePlan, queries: Tensor
    ) -> tuple[Stage, Tensor, Layout, StagePlan]:
        """Put queries in front of all tokens, as prefix tokens without a position.

        Args:
            tokens, layout, plan: Of this stage between two blocks. Prefix tokens that have not entered yet do so now.
            queries: ``(B, Q, C)``.

        Returns:
            The stage that runs its other blocks, the tokens ``(B, Q + P + H * W, C)``, and their layout and plan.
        """
        if self.prefix and layout.num_prefix < self.num_prefix:
            tokens, layout = self._add_prefix(tokens, layout, plan.position)
        count = queries.shape[1]
        given = plan.attention_plans.get(layout.num_prefix)
        layout = layout.with_prefix(layout.num_prefix + count)

        def below(rows: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
            return tuple(None if r is None else F.pad(r, (0, 0, count, 0)) for r in rows)

        _, stream, attention, carried = plan.position
        position = PositionPlan(None, below(stream), below(attention), *below((carried,)))
        plans = {} if given is None else {layout.num_prefix: given.within(layout)}
        stage = replace(self, prefix=(), prefix_after=0)
        return stage, torch.cat([queries, tokens], dim=1), layout, StagePlan(position, plans)

    def _add_prefix(
        self, tokens: Tensor, layout: Layout, position: PositionPlan
    ) -> tuple[Tensor, Layout]:
        """Tokens with the prefix tokens before them, which get their rows of the stem's position."""
        layout = layout.with_prefix(self.num_prefix)
        prefix = self._prefix_tokens(tokens.shape[0])
        if position.stem is not None:
            prefix = prefix + position.stem[:, : self.num_prefix]
        return layout.join(self._enter(prefix, layout), tokens), layout

    def end(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Tokens after the norm at the end."""
        return tokens if self.norm is None else self.norm(tokens, layout)

    def carried(self, plan: StagePlan, layout: Layout) -> Tensor | None:
        """Map ``(1, C, H, W)`` of the position that the next stage carries on, or None."""
        position = plan.position.carried
        return None if position is None else layout.to_maps(self._rows(position, layout))

    def serving(self, layer: int) -> list[nn.Module]:
        """A block, and the modules that serve only it."""
        position = self.position
        joining = [] if position is None else position.joining.layer_modules(layer)
        return [self.blocks[layer], *joining]

    def positions(self) -> list[nn.Module]:
        """The embedding with its joining, and positions inside the attention."""
        layers = (*self.embed.modules(), *self.blocks.modules())
        own = [part for part in layers if isinstance(part, AttentionPosition)]
        return [part for part in (self.position, self.attention_position, *own) if part is not None]

    def before(self) -> list[nn.Module]:
        """Modules that serve the stage as a whole before its blocks."""
        parts = (self.embed, self.position, self.attention_position, self.first_norm)
        return [part for part in parts if part is not None]

    def up_to(self, layers: int) -> Iterator[nn.Module]:
        """Modules that serve the first ``layers`` blocks; with all of them also the norm at the end."""
        yield self.embed
        if self.first_norm is not None:
            yield self.first_norm
        for layer in range(layers):
            yield from self.serving(layer)
        done = layers == len(self.blocks)
        if self.position is not None:  # its joining serves later blocks too
            yield self.position if done else self.position.embedding
        if self.attention_position is not None:
            yield self.attention_position
        if self.norm is not None and done:
            yield self.norm

    def within(self, path: str) -> Stage:
        """The same stage seen from a network that contains this one as ``path``."""
        return replace(
            self, name=f'{path}.{self.name}', position_name=f'{path}.{self.position_name}'
        )

    def _enter(self, tokens: Tensor, layout: Layout) -> Tensor:
        """Tokens with their position after dropout and the first norm."""
        tokens = self.dropout(tokens)
        return tokens if self.first_norm is None else self.first_norm(tokens, layout)

    def _prefix_tokens(self, batch: int) -> Tensor:
        """``(B, P, C)``."""
        tokens = [token.expand(batch, -1, -1) for token in self.prefix]
        return tokens[0] if len(tokens) == 1 else torch.cat(tokens, dim=1)

    def _rows(self, rows: Rows, layout: Layout) -> Rows:
        """Position rows of the present tokens."""
        absent = self.num_prefix - layout.num_prefix
        return rows[:, absent:] if absent and rows is not None else rows


Output = Callable[[Tensor, Layout], Any]


def mean_of_cells(tokens: Tensor, layout: Layout) -> Tensor:
    """Mean ``(B, C)`` of the cells that are not masked."""
    cells = layout.split(tokens)[1]
    if layout.mask is None:
        return cells.mean(1)
    hidden = ~layout.mask.unsqueeze(-1)
    return cells.masked_fill(hidden, 0).sum(1) / layout.mask.sum(1, keepdim=True).clamp(min=1)


# Outputs by the name of an out_type. Prefix tokens are in the order class token, distillation token, registers.
OUTPUTS: dict[str, Output] = {
    'featmap': lambda tokens, layout: layout.to_maps(tokens).contiguous(),
    'featmap_and_prefix': lambda tokens, layout: (
        layout.to_maps(tokens).contiguous(),
        layout.split(tokens)[0],
    ),
    'featmap_and_cls': lambda tokens, layout: (
        layout.to_maps(tokens).contiguous(),
        tokens[:, 0],
    ),
    'raw': lambda tokens, layout: tokens,
    'cls_token': lambda tokens, layout: tokens[:, 0],
    'cls_and_dist': lambda tokens, layout: (tokens[:, 0], tokens[:, 1]),
    'avg': mean_of_cells,
}
