"""Train only position: everything else of a model stays bit for bit as it is."""

from __future__ import annotations

from torch import nn

from .base import Backbone


def freeze_all_but_position(model: nn.Module) -> list[str]:
    """Switch gradients off for everything but position (Gabor position encoding, section 3.3).

    Position is what :meth:`~mmlape.backbones.Stage.positions` returns: embeddings with their joining, LaPE's norms
    included, and positions inside the attention. DTN's maps are not position. Running statistics change without
    gradients: see :func:`hold_statistics`.

    Args:
        model: A backbone, or a model around one or several: a classifier, detector or segmentor.

    Returns:
        Names of the trained parameters, in order.

    Raises:
        ValueError: If it contains no backbone of mmlape, no position with parameters, or one that ``frozen_stages``
            froze.
    """
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    wanted = {
        parameter
        for backbone in backbones
        for stage in backbone.stages()
        for position in stage.positions()
        for parameter in position.parameters()
    }
    named = list(model.named_parameters())
    frozen = [name for name, value in named if value in wanted and not value.requires_grad]
    problem = ''
    if not backbones:
        problem = 'it has no backbone of mmlape, e.g. mmlape.VisionTransformer'
    elif not wanted:
        names = ', '.join(dict.fromkeys(type(backbone).__name__ for backbone in backbones))
        problem = f'no position of its {names} has parameters, neither position, joining nor attention_position'
    elif frozen:
        more = f' and {len(frozen) - 1} more' if len(frozen) > 1 else ''
        problem = f'{frozen[0]}{more} is frozen already; frozen_stages must be -1 then'
    if problem:
        raise ValueError(f'position alone cannot be trained in a {type(model).__name__}: {problem}')
    for _, value in named:
        value.requires_grad_(value in wanted)
    return [name for name, value in named if value in wanted]


def statistics_of(model: nn.Module) -> list[nn.Module]:
    """Modules with running statistics: those without children that have a buffer in checkpoints."""
    return [
        part
        for part in model.modules()
        if not any(part.children()) and set(part._buffers) - part._non_persistent_buffers_set
    ]


def hold_statistics(modules: list[nn.Module]) -> None:
    """Put modules of :func:`statistics_of` into evaluation mode; dropout and stochastic depth stay in training mode."""
    for module in modules:
        module.training = False
