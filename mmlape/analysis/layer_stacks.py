"""The stacks of transformer layers of a backbone, and which of their norms are DTN."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from mmlape.checks import check_layers, check_option
from mmlape.norm import DTN
from mmlape.position import JoinedPosition

NORMS = ('norm1', 'norm2')


@dataclass(frozen=True)
class LayerStack:
    """Transformer layers that follow one another on one grid.

    Attributes:
        name: Where they are in the backbone: ``'blocks'`` in a ViT, ``'vit.blocks'`` in a ViT-Adapter, ``'block1'`` to
            ``'block4'`` in a pyramid.
        blocks: The layers; each has ``norm1``, ``attn`` and ``norm2``.
        grid: ``(H, W)`` that the position embedding beside them was built for, or None where there is none.
    """

    name: str
    blocks: nn.ModuleList
    grid: tuple[int, int] | None


@dataclass(frozen=True)
class NormPlace:
    """A norm of a layer.

    Attributes:
        name: ``'layer 0 norm1'``, ...
        layer: 0-based index in the stack.
        norm: The module.
    """

    name: str
    layer: int
    norm: nn.Module


def find_layer_stacks(backbone: nn.Module, part: str | None = None) -> list[LayerStack]:
    """All stacks of a backbone, found by their form and not by the class of the backbone.

    Args:
        backbone: Any network with our transformer layers.
        part: Name of the only one wanted. Default None: all.

    Raises:
        ValueError: If there is none, or none of that name.
    """
    modules = dict(backbone.named_modules())
    stacks = {
        path: LayerStack(path, module, _grid_beside(modules, path))
        for path, module in modules.items()
        if isinstance(module, nn.ModuleList) and len(module) and all(map(_is_layer, module))
    }
    if not stacks:
        raise ValueError(
            f'{type(backbone).__name__} has no transformer layers of the kind of mmlape.VisionTransformer, '
            'mmlape.ViTAdapter, mmlape.PyramidVisionTransformer or mmlape.PyramidVisionTransformerV2'
        )
    if part is None:
        return list(stacks.values())
    return [stacks[check_option('part', part, stacks)]]


def norm_places(
    stack: LayerStack,
    layers: int | Sequence[int] | None = None,
    norms: Sequence[str] = NORMS,
) -> list[NormPlace]:
    """The norms of a stack, layer by layer.

    Args:
        stack: From :func:`find_layer_stacks`.
        layers: None (default) for all, a number of first layers, or a list of 0-based indices.
        norms: ``'norm1'`` (before attention), ``'norm2'`` (before the feed-forward network) or both (default).

    Raises:
        ValueError: If a layer or norm does not exist.
    """
    wanted = check_layers('layers', layers, len(stack.blocks))
    for norm in norms:
        check_option('norm', norm, NORMS)
    return [
        NormPlace(f'layer {layer} {norm}', layer, getattr(stack.blocks[layer], norm))
        for layer in wanted
        for norm in norms
    ]


def dtn_places(
    stack: LayerStack,
    layers: int | Sequence[int] | None = None,
    norms: Sequence[str] = NORMS,
) -> list[NormPlace]:
    """The norms of a stack that are DTN.

    Args:
        stack: From :func:`find_layer_stacks`.
        layers: As for :func:`norm_places`; layers without DTN are left out unless they are named.
        norms: As for :func:`norm_places`.

    Returns:
        Maybe none, if ``layers`` is None.

    Raises:
        ValueError: If a layer does not exist, or one that is named has no DTN.
    """
    places = norm_places(stack, layers, norms)
    found = [place for place in places if isinstance(place.norm, DTN)]
    without = {place.layer for place in places} - {place.layer for place in found}
    if layers is not None and without:
        having = sorted({place.layer for place in dtn_places(stack)})
        raise ValueError(
            f'layers must have DTN: {sorted(without)} of {stack.name!r} have none, {having} have it'
        )
    return found


def find_dtn_stacks(backbone: nn.Module, part: str | None = None) -> list[LayerStack]:
    """The stacks with a DTN in them.

    Args:
        backbone: As for :func:`find_layer_stacks`.
        part: Name of the only one wanted. Default None: all.

    Raises:
        ValueError: If there is none, or none of that name.
    """
    stacks = {stack.name: stack for stack in find_layer_stacks(backbone) if dtn_places(stack)}
    if not stacks:
        raise ValueError(f'no layer of this {type(backbone).__name__} has DTN as its norm')
    if part is None:
        return list(stacks.values())
    return [stacks[check_option('part with DTN', part, stacks)]]


def _is_layer(module: nn.Module) -> bool:
    """Whether it has a layer's parts, with norms that are called as ``norm(tokens, grid)``."""
    parts = [getattr(module, name, None) for name in (*NORMS, 'attn')]
    return all(isinstance(part, nn.Module) for part in parts) and all(
        'grid' in inspect.signature(norm.forward).parameters for norm in parts[:2]
    )


def _grid_beside(modules: dict[str, nn.Module], path: str) -> tuple[int, int] | None:
    """That of ``position`` beside ``blocks``, of ``position<n>`` beside ``block<n>``."""
    parent, dot, name = path.rpartition('.')
    number = name.removeprefix('block')
    beside = modules.get(f'{parent}{dot}position{number if number.isdigit() else ""}')
    return beside.embedding.grid if isinstance(beside, JoinedPosition) else None
