"""Training position alone: everything else of a model stays as it is, to the bit."""

from __future__ import annotations

from torch import nn

from .base import Backbone


def freeze_all_but_position(model: nn.Module) -> list[str]:
    """Switch gradients off for all that is not position (Gabor position encoding, section 3.3).

    Position is what the stages of our backbones name: embeddings and all that their joining has, LaPE's norms too, and
    what is inside the attention, wherever the model keeps it (:meth:`~mmlape.backbones.Stage.positions`). DTN's maps
    are statistics' and not position. Running statistics change without gradients: see :func:`hold_statistics`.

    Args:
        model: A backbone, or anything around one or several: a classifier, detector or segmentor.

    Returns:
        Names of the parameters that are trained, in order.

    Raises:
        ValueError: If there is no backbone of ours in it, none has a position with parameters, or one of these is
            frozen already (``frozen_stages``).
    """
    backbones = [part for part in model.modules() if isinstance(part, Backbone)]
    kind = type(model).__name__
    if not backbones:
        raise ValueError(
            f'position alone cannot be trained in a {kind}: it has no backbone of mmlape, e.g. mmlape.VisionTransformer'
        )
    wanted = {
        parameter
        for backbone in backbones
        for stage in backbone.stages()
        for position in stage.positions()
        for parameter in position.parameters()
    }
    if not wanted:
        names = ', '.join(dict.fromkeys(type(backbone).__name__ for backbone in backbones))
        raise ValueError(
            f'position alone cannot be trained in a {kind}: no position of its {names} has parameters, neither '
            'position, joining nor attention_position'
        )
    named = list(model.named_parameters())
    frozen = [name for name, value in named if value in wanted and not value.requires_grad]
    if frozen:
        more = f' and {len(frozen) - 1} more' if len(frozen) > 1 else ''
        raise ValueError(
            f'position alone cannot be trained in a {kind}: {frozen[0]}{more} is frozen already; frozen_stages must be '
            '-1 then'
        )
    for _, value in named:
        value.requires_grad_(value in wanted)
    return [name for name, value in named if value in wanted]


def statistics_of(model: nn.Module) -> list[nn.Module]:
    """Modules that keep statistics which training changes: those without children that have a buffer in checkpoints."""
    return [
        part
        for part in model.modules()
        if not any(part.children()) and set(part._buffers) - part._non_persistent_buffers_set
    ]


def hold_statistics(modules: list[nn.Module]) -> None:
    """Put modules of :func:`statistics_of` into evaluation mode; dropout and stochastic depth go on in training."""
    for module in modules:
        module.training = False
