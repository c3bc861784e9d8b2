"""Where in a backbone a position embedding joins a stack of layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from mmlape.position import JoinedPosition, Joining, PositionEmbedding


@dataclass(frozen=True)
class PositionStack:
    """One position embedding, how it joins, and the layers that it joins.

    Attributes:
        name: Where the position is in the backbone: ``'position'`` in a ViT, ``'vit.position'`` in a ViT-Adapter,
            ``'position1'`` to ``'position4'`` in a pyramid.
        embedding: The position embedding.
        joining: The joining method.
        blocks: The transformer layers, in order; each has its norm before attention as ``norm1``.
    """

    name: str
    embedding: PositionEmbedding
    joining: Joining
    blocks: nn.ModuleList


def find_stacks(backbone: nn.Module) -> list[PositionStack]:
    """All stacks of a backbone: one of a ViT, the one inside a ViT-Adapter, one per stage of a pyramid.

    They are found by their form, not by the class of the backbone: every
    :class:`~mmlape.position.JoinedPosition`, with the layers that stand beside it under ``blocks``, or under
    ``block<n>`` where it is called ``position<n>``.

    Raises:
        ValueError: If the backbone has none (its position may be a relative one, inside the attention), or the layers
            of one are not found.
    """
    modules = dict(backbone.named_modules())
    stacks = [
        PositionStack(path, module.embedding, module.joining, _blocks_beside(modules, path))
        for path, module in modules.items()
        if isinstance(module, JoinedPosition)
    ]
    if not stacks:
        raise ValueError(
            f'{type(backbone).__name__} has no absolute position embedding: there is nothing to show'
        )
    return stacks


def pick_stack(backbone: nn.Module, name: str | None = None) -> PositionStack:
    """The stack called ``name``; None for the only one.

    Raises:
        ValueError: If there is none of that name, or several to choose from.
    """
    stacks = {stack.name: stack for stack in find_stacks(backbone)}
    if name is None and len(stacks) == 1:
        return next(iter(stacks.values()))
    if name not in stacks:
        raise ValueError(f'the position must be one of {sorted(stacks)}, got {name!r}')
    return stacks[name]


def _blocks_beside(modules: dict[str, nn.Module], path: str) -> nn.ModuleList:
    parent, _, name = path.rpartition('.')
    number = name.removeprefix('position')
    beside = f'block{number}' if number.isdigit() else 'blocks'
    blocks = modules.get(f'{parent}.{beside}' if parent else beside)
    if not isinstance(blocks, nn.ModuleList):
        raise ValueError(f'the layers that {path!r} joins are expected beside it as {beside!r}')
    return blocks
