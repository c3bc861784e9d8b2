r"""Mean attention distance per head (DTN, ICLR 2022, Figure 2; defined in appendix B.1).

:math:`d = \frac 1 T \sum_i \sum_j A_{ij} \delta_{ij}` with the attention weights A of one image and the Euclidean
distances :math:`\delta` between the centres of the tokens, in patches of that layer's grid; the mean over images.

* The weights are those of the very queries, keys and scores that the layer computes: whatever position does to them is
  in.
* With spatial reduction (PVT) keys are few, each made of a block of tokens: distances are to the centres of the blocks.
* What has no place in the image is left out, as a query and as a key: prefix tokens, and the zeros that windows are
  padded with. The weights of the other keys are divided by their sum, so that they sum to one as in the definition.
* With windows, keys are those of the query's window.

Q queries, K keys, R windows (1 without) of an image
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage
from mmlape.checks import check_layers
from mmlape.layers import (
    Attention,
    ShiftedWindowAttention,
    SpatialReductionAttention,
    WideValueAttention,
)
from mmlape.layers.attention import LINEAR_GRID
from mmlape.layers.windows import apart
from mmlape.layout import Grid, Layout

from .listening import Call, listen

# Attention weights held at a time.
CHUNK = 16_000_000
# What is measured of an image, see _distances_of_image.
_Measured = dict[tuple[str, int], tuple[np.ndarray, float, Grid]]


@dataclass(frozen=True)
class AttentionDistances(Result):
    """Mean attention distances of a stage.

    Attributes:
        stage: Its name.
        layers: ``(L,)``, 0-based indices.
        distances: ``(images, L, heads)``, in patches of the stage's grid.
        uniform: ``(images, L)``, the distance where every key has the same weight.
        grids: ``(images, 2)``, height and width in tokens.
    """

    stage: str
    layers: np.ndarray
    distances: np.ndarray
    uniform: np.ndarray
    grids: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """Mean over images, ``(L, heads)``."""
        return self.distances.mean(axis=0)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with the mean over images."""
        return super().arrays() | {'mean': self.mean}


class Places(NamedTuple):
    """Where queries and keys are, in tokens of the grid.

    Attributes:
        queries: ``(Q, 2)``, row and column.
        keys: ``(K, 2)``.
        has_query: ``(R, Q)``, whether the query has a place in the image.
        has_key: ``(R, K)``, the same for keys.
        apart: ``(R, 1, Q, K)``, what keeps pairs apart that a moved window holds; None where there is nothing.
    """

    queries: Tensor
    keys: Tensor
    has_query: Tensor
    has_key: Tensor
    apart: Tensor | None = None


def attention_distances(
    backbone: nn.Module,
    images: Iterable[Tensor],
    stages: Sequence[Stage],
    layers: int | Sequence[int] | None = None,
) -> list[AttentionDistances]:
    """Mean attention distances of all heads.

    Args:
        backbone: In evaluation mode.
        images: ``(1, 3, height, width)`` each, of any size; see :func:`~mmlape.analysis.read_images`.
        stages: From :func:`~mmlape.analysis.find_stages`.
        layers: 0-based, of every stage. Default None: all.

    Raises:
        ValueError: If there is no image, a layer does not exist, or a layer's attention is none of ours.
    """
    chosen = {
        stage.name: check_layers(f'layers of {stage.name!r}', layers, len(stage.blocks))
        for stage in stages
    }
    attentions = {
        stage.blocks[layer].get_submodule('attn'): (stage.name, layer)
        for stage in stages
        for layer in chosen[stage.name]
    }
    for attention in attentions:
        places_of(attention, Layout((1, 1)))  # refused before anything is computed
    found = [_distances_of_image(backbone, image, attentions) for image in images]
    if not found:
        raise ValueError('images must hold at least one image')
    return [_of_stage(stage.name, chosen[stage.name], found) for stage in stages]


def mean_distance(
    query: Tensor,
    key: Tensor,
    places: Places,
    bias: Tensor | None = None,
    scale: float | None = None,
) -> Tensor:
    """Mean attention distance of every head, ``(heads,)`` float64, without holding all weights at once.

    Args:
        query: ``(R, heads, Q, D)``.
        key: ``(R, heads, K, D)``.
        places: Where they are.
        bias: Added to the scores, or a mask of what is attended to, as for ``scaled_dot_product_attention``. Default
            None.
        scale: Of the scores. Default None: ``1 / sqrt(D)``.
    """
    num_windows, heads, num_queries, _ = query.shape
    total = query.new_zeros(heads, dtype=torch.float64)
    if bias is not None:
        bias = bias.expand(num_windows, heads, num_queries, key.shape[2])
    hidden = ~places.has_key[:, None, None]
    step = max(CHUNK // (num_windows * heads * key.shape[2]), 1)
    for rows in torch.arange(num_queries, device=query.device).split(step):
        part = None if bias is None else bias[:, :, rows]
        scores = Call(query[:, :, rows], key, part, scale).scores()
        weights = scores.masked_fill(hidden, -math.inf).softmax(dim=-1)
        distances = torch.cdist(places.queries[rows], places.keys)
        per_query = (weights * distances).sum(dim=-1)
        counted = places.has_query[:, None, rows]
        total += per_query.masked_fill(~counted, 0).sum(dim=(0, 2), dtype=torch.float64)
    return total / places.has_query.sum()


def places_of(attention: nn.Module, layout: Layout) -> Places:
    """Where the queries and keys of an attention layer are.

    Args:
        attention: One of ours.
        layout: Of its tokens.

    Raises:
        ValueError: If the layer is none of ours.
    """
    for cls, find in _PLACES.items():
        if isinstance(attention, cls):
            return find(attention, layout)
    raise ValueError(
        f'attention distance is defined for {[cls.__name__ for cls in _PLACES]}, '
        f'got {type(attention).__name__}'
    )


def _all_places(attention: nn.Module, layout: Layout) -> Places:
    return _with_prefix(_cells(layout.grid), layout.num_prefix, layout.num_prefix)


def _token_places(attention: Attention, layout: Layout) -> Places:
    window = attention.window_size
    return (
        _all_places(attention, layout) if window is None else _window_places(window, layout, (0, 0))
    )


def _moved_places(attention: ShiftedWindowAttention, layout: Layout) -> Places:
    window = attention.window_size
    padded = (-(-layout[0] // window[0]) * window[0], -(-layout[1] // window[1]) * window[1])
    shift = attention.shift_on(padded)
    places = _window_places(window, layout, shift)
    if any(shift):
        places = places._replace(apart=apart(padded, window, shift, torch.device('cpu'))[:, None])
    return places


def _window_places(window: Grid, layout: Layout, shift: Grid) -> Places:
    rows, columns = map(_in_windows, layout.grid, window, shift)
    inside = (rows[:, None, :, None] & columns[None, :, None]).flatten(2).flatten(0, 1)
    places = _with_prefix(_cells(window), 0, layout.num_prefix)
    has_key = F.pad(inside, (layout.num_prefix, 0), value=False)
    return places._replace(has_query=inside, has_key=has_key)


def _reduced_places(attention: SpatialReductionAttention, layout: Layout) -> Places:
    places = _all_places(attention, layout)
    if not attention.reduces:
        return places
    centres = [
        _pooled_centres(side) if attention.linear else _strided_centres(side, attention.sr_ratio)
        for side in layout.grid
    ]
    keys = torch.cartesian_prod(*centres)
    return places._replace(keys=keys, has_key=torch.ones(1, len(keys), dtype=torch.bool))


_PLACES: dict[type[nn.Module], Callable[..., Places]] = {
    ShiftedWindowAttention: _moved_places,
    Attention: _token_places,
    SpatialReductionAttention: _reduced_places,
    WideValueAttention: _all_places,
}


def _in_windows(side: int, length: int, shift: int) -> Tensor:
    """``(windows, length)``, which places of the windows along an axis that was moved are inside the grid."""
    padded = -(-side // length) * length
    return (torch.arange(padded).roll(-shift) < side).view(-1, length)


def _cells(grid: Grid) -> Tensor:
    return torch.cartesian_prod(*(torch.arange(side, dtype=torch.float32) for side in grid))


def _with_prefix(cells: Tensor, query_prefix: int, key_prefix: int) -> Places:
    """Prefix tokens are put anywhere, and said to have no place."""
    positions, known = [], []
    for prefix in (query_prefix, key_prefix):
        positions.append(F.pad(cells, (0, 0, prefix, 0)))
        known.append((torch.arange(len(positions[-1])) >= prefix)[None])
    return Places(*positions, *known)


def _strided_centres(length: int, stride: int) -> Tensor:
    """Centres of the blocks of ``stride`` cells; of the last one, what is inside the grid."""
    first = torch.arange(0, length, stride, dtype=torch.float32)
    return (first + (first + stride).clamp(max=length) - 1) / 2


def _pooled_centres(length: int) -> Tensor:
    """Centres of what adaptive pooling takes a mean of."""
    cells = torch.arange(LINEAR_GRID)
    first = cells * length // LINEAR_GRID
    end = -(-(cells + 1) * length // LINEAR_GRID)
    return (first + end - 1) / 2


def _distances_of_image(
    backbone: nn.Module, image: Tensor, attentions: dict[nn.Module, tuple[str, int]]
) -> _Measured:
    """Distances per head, that of uniform weights, and the grid, by stage and layer."""
    found: _Measured = {}

    def measure(attention: nn.Module, layout: Layout, call: Call) -> None:
        name = attentions[attention]
        if name in found:  # with windows a second call follows: that of prefix tokens to all
            return
        places = places_of(attention, layout)
        windows = len(places.has_query)
        if len(call.query) != windows:  # they stand beside the heads
            call = call.by_window(windows)
        found[name] = (
            mean_distance(call.query, call.key, places, call.bias, call.scale).cpu().numpy(),
            float(mean_distance(*_equal_scores(places), places, places.apart)),
            layout.grid,
        )

    listen(backbone, image, attentions, measure)
    return found


def _of_stage(name: str, layers: Sequence[int], images: Sequence[_Measured]) -> AttentionDistances:
    return AttentionDistances(
        stage=name,
        layers=np.asarray(layers),
        distances=np.stack([[image[name, layer][0] for layer in layers] for image in images]),
        uniform=np.stack([[image[name, layer][1] for layer in layers] for image in images]),
        grids=np.asarray([image[name, layers[0]][2] for image in images]),
    )


def _equal_scores(places: Places) -> tuple[Tensor, Tensor]:
    """Queries and keys whose products are all zero."""
    query, key = (
        torch.zeros(*known.shape, 1).unsqueeze(1) for known in (places.has_query, places.has_key)
    )
    return query, key
