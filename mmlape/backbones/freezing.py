"""What ``frozen_stages`` of a network keeps from training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from .options import layers_of_units

if TYPE_CHECKING:
    from .network import StagedTransformer


def frozen_parts(network: StagedTransformer) -> list[nn.Module]:
    """The first ``frozen_stages`` layers or stages with what serves them, and what makes the first tokens."""
    if network.frozen_stages < 0:
        return []
    counts, stages = _frozen_layers(network), network.stages()
    if counts == [len(stage.blocks) for stage in stages]:
        return list(network.children())
    frozen = [
        module
        for number, (stage, count) in enumerate(zip(stages, counts))
        if count or not number
        for module in (*stage.up_to(count), network.norm_of_map(number) if count else None)
        if module is not None
    ]
    return [*frozen, network.drop_after_position] if network.counts == 'layers' else frozen


def frozen_tokens(network: StagedTransformer) -> list[nn.Parameter]:
    """Prefix tokens that have joined by the last frozen layer."""
    if network.frozen_stages < 0:
        return []
    count, first = _frozen_layers(network)[-1], network.num_stages == 1
    if (count or first) and count >= network.prefix_after:
        return [getattr(network, name) for name in network.prefix_names]
    return []


def _frozen_layers(network: StagedTransformer) -> list[int]:
    """Number of first layers of each stage that are frozen."""
    depths = [len(stage.blocks) for stage in network.stages()]
    return layers_of_units(network.frozen_stages, depths, network.counts)
