"""Pictures of how position flows through a network."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from mmlape.analysis.panels import DIVERGING, new_panels, show_map, symmetric_scale

from .flow import ROLES, PositionFlow, pick_extremes, pick_flow_channels

# Inches: columns are many.
CELL = 1.25


def draw_flow(flow: PositionFlow, count: int = 3, note: str = '') -> Figure:
    """Channels of a layer that are most like position, and under them those that are least (Figure 8).

    Columns: what the stage begins with, position and their sum, of the same channels; then queries, keys and values, of
    channels of their own. Over a panel stand the number of the channel and its likeness to position. Every panel has a
    scale of its own around zero: it is shapes that are compared.

    Args:
        flow: From :func:`~mmlape.analysis.position_flow`.
        count: Channels of either kind. Default 3.
        note: What is written beside them, e.g. whose weights these are. Default nothing.
    """
    columns = ('patches', 'position', 'summed', *ROLES)
    figure, axes = new_panels(2 * count, len(columns), cell=CELL)
    for column, role in enumerate(columns):
        maps = getattr(flow, role)
        likeness = flow.likeness(role if role in ROLES else 'summed')
        for kind, chosen in enumerate(pick_extremes(likeness, count)):
            for row, channel in enumerate(chosen):
                place = axes[kind * count + row, column]
                words = f'{channel}: {likeness[channel]:.2f}' if column > 1 else f'{channel}'
                name = f'{role} ' if kind == row == 0 else ''
                _show(place, maps[channel], name + words)
    axes[0, 0].set_ylabel('most like position', fontsize=8, loc='top')
    axes[count, 0].set_ylabel('least like position', fontsize=8, loc='top')
    return _noted(figure, note)


def draw_position_alone(
    flow: PositionFlow, channels: Sequence[int] | None = None, count: int = 3, note: str = ''
) -> Figure:
    """Position and what a layer's queries, keys and values make of it alone, a row per channel (Figure 9).

    Args:
        flow: From :func:`~mmlape.analysis.position_flow`.
        channels: Default None: those in which position is strongest beside the image.
        count: How many these are. Default 3.
        note: What is written beside them. Default nothing.

    Raises:
        ValueError: If a channel does not exist.
    """
    chosen = pick_flow_channels(flow, channels, count)
    columns = ('position', *(f'position_{role}' for role in ROLES))
    figure, axes = new_panels(len(chosen), len(columns), cell=CELL)
    for places, channel in zip(axes, chosen):
        places[0].set_ylabel(f'channel {channel}', fontsize=8)
        for place, role in zip(places, columns):
            name = role.removeprefix('position_') if channel == chosen[0] else ''
            _show(place, getattr(flow, role)[channel], name)
    return _noted(figure, note)


def draw_layers(
    flow: PositionFlow, channels: Sequence[int] | None = None, note: str = ''
) -> Figure:
    """The same channels before the first layer of a stage and after each (Figure 10), a row per channel.

    Args:
        flow: From :func:`~mmlape.analysis.position_flow`.
        channels: Default None: the one that is most like position where it joins, and the one that is least.
        note: What is written beside them. Default nothing.

    Raises:
        ValueError: If a channel does not exist.
    """
    if channels is None:
        chosen = [found[0] for found in pick_extremes(flow.likeness('summed'), 1)]
    else:
        chosen = pick_flow_channels(flow, channels, 0)
    figure, axes = new_panels(len(chosen), len(flow.layers), cell=CELL)
    for places, channel in zip(axes, chosen):
        places[0].set_ylabel(f'channel {channel}', fontsize=8)
        for number, (place, maps) in enumerate(zip(places, flow.layers)):
            name = f'layer {number - 1}' if number else 'before'
            _show(place, maps[channel], name if channel == chosen[0] else '')
    return _noted(figure, note)


def _show(place, values: np.ndarray, title: str) -> None:
    show_map(place, values, DIVERGING, symmetric_scale(values), title)


def _noted(figure: Figure, note: str) -> Figure:
    if note:
        figure.text(0.996, 0.5, note, fontsize=6, rotation=270, ha='right', va='center')
    return figure
