r"""How position flows through a network (Gabor position encoding, Figures 8 to 10).

Position is added to what an image gives, and yet the paper finds the two in different channels: in some the map of a
channel has the shape of the position, in the others that of the image, and projections to queries, keys and values keep
them apart. Here that is measured: the *likeness* of a channel is the absolute correlation, over the cells of the grid,
of its map with the map that the same channel has of position alone.

Position alone is what position contributes to the input of the layer's attention, as in
:mod:`~mmlape.analysis.position.correlation`: :math:`LN_{\omega,l}(\omega_l)` with LaPE, :math:`LN_l(\omega)` where
position is in the stream, which is exact but for a positive factor per token. It goes through the layer's own
projections, whose biases are left out. The paper's Figure 9 shows :math:`pos \cdot U` without the norm before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage
from mmlape.checks import check_positive_int
from mmlape.layers.attention import LINEAR_GRID
from mmlape.layers.windows import WideValues
from mmlape.layout import Grid, Layout

from .correlation import layer_positions, plan_sources, position_plan
from .tables import pick_channels

ROLES = ('query', 'key', 'value')
# What attention layers call their projections.
_PROJECTIONS = ('qkv', 'q', 'kv')


@dataclass(frozen=True)
class PositionFlow(Result):
    """Channels of one layer as maps, of one image and of position alone. ``(C, H, W)`` each; those of queries, keys
    and values have all heads side by side, those of keys and values a smaller grid where the layer reduces it.

    Attributes:
        stage: Name of the stage.
        layer: 0-based index in it.
        patches: What the stage begins with, before position joins.
        position: What joins it: in the stream, up to this layer; with LaPE, what this layer's attention adds.
        summed: Both, and what else is in the stream by then: what enters the layer; with LaPE, what its attention
            reads.
        query, key, value: Of the image.
        position_query, position_key, position_value: Of position alone.
        layers: ``(1 + L, C, H, W)``: what enters the first layer of the stage, and what leaves each.
    """

    stage: str
    layer: int
    patches: np.ndarray
    position: np.ndarray
    summed: np.ndarray
    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    position_query: np.ndarray
    position_key: np.ndarray
    position_value: np.ndarray
    layers: np.ndarray

    def likeness(self, role: str) -> np.ndarray:
        """Likeness ``(C,)`` of every channel to position, 0 to 1.

        Args:
            role: ``'summed'``, ``'query'``, ``'key'`` or ``'value'``.
        """
        alone = self.position if role == 'summed' else getattr(self, f'position_{role}')
        return channel_likeness(getattr(self, role), alone)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with likenesses."""
        likenesses = {f'likeness_{role}': self.likeness(role) for role in ('summed', *ROLES)}
        return super().arrays() | likenesses


def position_flow(backbone: nn.Module, image: Tensor, stage: Stage, layer: int = 0) -> PositionFlow:
    """Run a backbone on an image and keep the maps of a layer's channels, and of position alone.

    Args:
        backbone: In evaluation mode.
        image: ``(1, 3, height, width)``, see :func:`~mmlape.analysis.read_images`.
        stage: From :func:`~mmlape.analysis.position_stages`.
        layer: 0-based. Default 0.

    Raises:
        ValueError: If there is no such layer, it receives no position, or its attention has other projections than
            ours.
    """
    check_positive_int('layer', layer, minimum=0, maximum=len(stage.blocks) - 1)
    attention = stage.blocks[layer].get_submodule('attn')
    _projections(attention)  # refused before anything is computed
    blocks = {f'block {number}': block for number, block in enumerate(stage.blocks)}
    with torch.no_grad():
        with _calls({'embed': stage.embed, 'attn': attention, **blocks}) as calls:
            backbone(image)
        layout = calls['embed'][1][1]
        # A warm start has both; in the stream is what it has learned before.
        source = plan_sources(position_plan(stage, layout.grid))[-1]
        found = layer_positions(stage, layout.grid, source, [layer])[-1]
        tokens, where = calls['attn'][0][:2]
        rows = torch.from_numpy(found.rows).to(tokens)[None, -tokens.shape[1] :]
        heads = _heads(attention, tokens, where, with_bias=True)
        own = _heads(attention, rows, where, with_bias=False)
    entering = calls[f'block {layer}'][0][0]
    outputs = [calls['block 0'][0][0], *(calls[name][1] for name in blocks)]
    if source == 'attention':
        position, summed = rows, tokens
    else:
        position, summed = _in_stream(stage, layout.grid, layer, tokens.shape[1]), entering
    maps = partial(_maps, grid=layout.grid)
    of_keys = partial(_maps, grid=_key_grid(attention, layout.grid))
    shown = (maps, of_keys, of_keys)
    return PositionFlow(
        stage=stage.name,
        layer=layer,
        patches=maps(calls['embed'][1][0]),
        position=maps(position),
        summed=maps(summed),
        **{role: show(part) for role, show, part in zip(ROLES, shown, heads)},
        **{f'position_{role}': show(part) for role, show, part in zip(ROLES, shown, own)},
        layers=np.stack([maps(tokens) for tokens in outputs]),
    )


def channel_likeness(maps: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Absolute correlation of two maps of each channel, ``(C, H, W)`` both, as ``(C,)``; 0 where a map is constant."""
    centred = [part.reshape(len(part), -1).astype(np.float64) for part in (maps, others)]
    centred = [part - part.mean(axis=1, keepdims=True) for part in centred]
    product = (centred[0] * centred[1]).sum(axis=1)
    lengths = np.prod([np.linalg.norm(part, axis=1) for part in centred], axis=0)
    least = np.finfo(np.float32).eps * np.prod([np.abs(part).max() for part in (maps, others)])
    return np.divide(np.abs(product), lengths, out=np.zeros(len(maps)), where=lengths > least)


def pick_extremes(likeness: np.ndarray, count: int) -> tuple[list[int], list[int]]:
    """The channels most like position, the most alike first, and those least like it, the least alike first."""
    order = np.argsort(-likeness, kind='stable')
    count = min(count, len(order))
    return order[:count].tolist(), order[::-1][:count].tolist()


def pick_flow_channels(flow: PositionFlow, channels: Sequence[int] | None, count: int) -> list[int]:
    """The channels asked for; by default those in which position is strongest beside the image.

    Raises:
        ValueError: If a channel does not exist in the stream, the queries, the keys and the values alike.
    """
    if channels is None:
        return pick_extremes(flow.likeness('summed'), count)[0]
    least = min(len(getattr(flow, role)) for role in ('summed', *ROLES))
    return pick_channels(least, channels)


@contextmanager
def _calls(modules: dict[str, nn.Module]) -> Iterator[dict[str, tuple[tuple, Any]]]:
    """Arguments and result of the last call of each module while this lasts."""
    found: dict[str, tuple[tuple, Any]] = {}

    def note(name: str, module: nn.Module, arguments: tuple, output: Any) -> None:
        found[name] = (arguments, output)

    handles = [m.register_forward_hook(partial(note, name)) for name, m in modules.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _projections(attention: nn.Module) -> dict[str, nn.Module]:
    found = {name: getattr(attention, name) for name in _PROJECTIONS if hasattr(attention, name)}
    if set(found) not in ({'qkv'}, {'q', 'kv'}):
        raise ValueError(
            f'queries, keys and values of a {type(attention).__name__} are not known: an attention layer of ours has '
            'qkv, or q and kv'
        )
    return found


def _heads(
    attention: nn.Module, tokens: Tensor, where: Layout | Grid, with_bias: bool
) -> tuple[Tensor, ...]:
    """Queries, keys and values of an attention layer, ``(1, N, C)`` each, of its tokens."""
    projections = _projections(attention)
    if 'qkv' in projections:  # of each token for itself, whatever window it is put into
        calls: dict[str, tuple[tuple, Any]] = {'qkv': ((tokens,), projections['qkv'](tokens))}
    else:
        with _calls(projections) as calls:
            attention(tokens, where)
    if with_bias:
        return _split(attention, {name: output for name, (_, output) in calls.items()})
    return _split(
        attention, {name: _without_bias(projections[name], call) for name, call in calls.items()}
    )


def _split(attention: nn.Module, results: dict[str, Tensor]) -> tuple[Tensor, ...]:
    """Queries, keys and values, ``(1, N, C)`` each, of the results of the projections."""
    if isinstance(attention, WideValues):
        widths = (attention.key_dims, attention.key_dims, attention.value_dims)
        parts = attention.heads(results['qkv'], *widths)
        return tuple(part.transpose(1, 2).flatten(2) for part in parts)
    if 'qkv' in results:
        return results['qkv'].chunk(3, dim=-1)
    return (results['q'], *results['kv'].chunk(2, dim=-1))


def _without_bias(projection: nn.Module, call: tuple[tuple, Any]) -> Tensor:
    """What an affine layer answers beyond its answer to zero."""
    (tokens, *rest), output = call
    return output - projection.forward(torch.zeros_like(tokens[:, :1]), *rest)


def _key_grid(attention: nn.Module, grid: Grid) -> Grid:
    if not getattr(attention, 'reduces', False):
        return grid
    if attention.linear:
        return LINEAR_GRID, LINEAR_GRID
    ratio = int(attention.sr_ratio)  # type: ignore[arg-type]  # of a SpatialReductionAttention
    return -(-grid[0] // ratio), -(-grid[1] // ratio)


def _in_stream(stage: Stage, grid: Grid, layer: int, count: int) -> Tensor:
    """What position has added to the stream when a layer reads it, ``(1, count, C)``."""
    plan = position_plan(stage, grid)
    entries = [entry for entry in (plan.stem, *plan.stream[: layer + 1]) if entry is not None]
    return torch.stack(entries).sum(dim=0)[:, -count:]


def _maps(tokens: Tensor, grid: Grid) -> np.ndarray:
    """``(1, P + H * W, C)`` as ``(C, H, W)``."""
    cells = tokens[0, -grid[0] * grid[1] :].detach().float().cpu().numpy()
    return cells.T.reshape(-1, *grid)
