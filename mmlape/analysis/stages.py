"""The stages of a backbone, as it names them itself, and which of their norms are DTN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MethodType

from torch import nn

from mmlape.backbones import Stage
from mmlape.checks import check_layers, check_option
from mmlape.norm import DTN
from mmlape.position import JoinedPosition, MergedPosition

from .choices import NORMS


@dataclass(frozen=True)
class NormPlace:
    """A norm of a layer.

    Attributes:
        name: ``'layer 0 norm1'``, ...
        layer: 0-based index in the stage.
        norm: The module.
    """

    name: str
    layer: int
    norm: nn.Module


def find_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages of a backbone: layers that follow one another on one grid.

    Args:
        backbone: Any network with ``stages()``: one of ours.
        part: Name of the layers of the only stage wanted: ``'blocks'`` in a ViT, ``'vit.blocks'`` in a ViT-Adapter,
            ``'block1'`` to ``'block4'`` in a pyramid. Default None: all.

    Raises:
        ValueError: If the network has no transformer layers of our kind, or no stage of that name.
    """
    answer = getattr(backbone, 'stages', None)  # of timm's networks, a module
    stages = answer() if isinstance(answer, MethodType) else []
    found = {stage.name: stage for stage in stages}
    if not found:
        raise ValueError(
            f'{type(backbone).__name__} has no transformer layers of the kind of mmlape: give one of its '
            'backbones, e.g. mmlape.VisionTransformer, mmlape.ViTAdapter or mmlape.SwinTransformer'
        )
    return list(found.values()) if part is None else [found[check_option('part', part, found)]]


def position_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages that have an absolute position of their own, not that of the stage before (``mmlape.MergedPosition``).

    Args:
        backbone: As for :func:`find_stages`.
        part: Name of the position of the only stage wanted: ``'position'`` in a ViT, ``'vit.position'`` in a
            ViT-Adapter, ``'position1'`` to ``'position4'`` in a pyramid. Default None: all.

    Raises:
        ValueError: If there is none (position may be inside the attention alone), or none of that name.
    """
    found = {
        stage.position_name: stage
        for stage in find_stages(backbone)
        if stage.position is not None and not isinstance(stage.position.embedding, MergedPosition)
    }
    if not found:
        raise ValueError(
            f'{type(backbone).__name__} has no absolute position embedding: there is nothing to show'
        )
    if part is None:
        return list(found.values())
    return [found[check_option('the position', part, found)]]


def pick_stage(backbone: nn.Module, part: str | None = None) -> Stage:
    """The stage of :func:`position_stages` whose position is called ``part``; None for the only one.

    Raises:
        ValueError: If there is none of that name, or several to choose from.
    """
    found = position_stages(backbone, part)
    if len(found) > 1:
        check_option('the position', part, [stage.position_name for stage in found])
    return found[0]


def position_of(stage: Stage) -> JoinedPosition:
    """The position of a stage of :func:`position_stages`.

    Raises:
        ValueError: If no absolute position joins the stage.
    """
    if stage.position is None:
        raise ValueError(f'{stage.name!r} has no absolute position embedding')
    return stage.position


def norm_places(
    stage: Stage, layers: int | Sequence[int] | None = None, norms: Sequence[str] = NORMS
) -> list[NormPlace]:
    """The norms of a stage, layer by layer.

    Args:
        stage: From :func:`find_stages`.
        layers: None (default) for all, a number of first layers, or a list of 0-based indices.
        norms: ``'norm1'`` (before attention), ``'norm2'`` (before the feed-forward network) or both (default).

    Raises:
        ValueError: If a layer or norm does not exist.
    """
    wanted = check_layers('layers', layers, len(stage.blocks))
    for norm in norms:
        check_option('norm', norm, NORMS)
    return [
        NormPlace(f'layer {layer} {norm}', layer, getattr(stage.blocks[layer], norm))
        for layer in wanted
        for norm in norms
        if hasattr(stage.blocks[layer], norm)  # branches side by side have one norm
    ]


def dtn_places(
    stage: Stage, layers: int | Sequence[int] | None = None, norms: Sequence[str] = NORMS
) -> list[NormPlace]:
    """The norms of a stage that are DTN.

    Args:
        stage: From :func:`find_stages`.
        layers: As for :func:`norm_places`; layers without DTN are left out unless they are named.
        norms: As for :func:`norm_places`.

    Returns:
        Maybe none, if ``layers`` is None.

    Raises:
        ValueError: If a layer does not exist, or one that is named has no DTN.
    """
    places = norm_places(stage, layers, norms)
    found = [place for place in places if isinstance(place.norm, DTN)]
    without = {place.layer for place in places} - {place.layer for place in found}
    if layers is not None and without:
        having = sorted({place.layer for place in dtn_places(stage)})
        raise ValueError(
            f'layers must have DTN: {sorted(without)} of {stage.name!r} have none, {having} have it'
        )
    return found


def dtn_stages(backbone: nn.Module, part: str | None = None) -> list[Stage]:
    """The stages with a DTN in them.

    Args:
        backbone, part: As for :func:`find_stages`.

    Raises:
        ValueError: If there is none, or none of that name.
    """
    found = {stage.name: stage for stage in find_stages(backbone) if dtn_places(stage)}
    if not found:
        raise ValueError(f'no layer of this {type(backbone).__name__} has DTN as its norm')
    if part is None:
        return list(found.values())
    return [found[check_option('part with DTN', part, found)]]
