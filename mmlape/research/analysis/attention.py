"""How far attention looks (DTN, ICLR 2022, Figure 2; appendix B.1), and where the class token does (DINO, Figure 1), by
the very queries, keys and scores that a layer hands to ``scaled_dot_product_attention``. docs/pictures.md says how
keys of blocks, windows and prefix tokens count.

Q queries, K keys, R windows (1 without) of an image
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mmlape.backbones import Stage
from mmlape.checks import check_layers, check_positive_int
from mmlape.layers import (
    Attention,
    DifferentialAttention,
    ShiftedWindowAttention,
    SpatialReductionAttention,
    WideValueAttention,
)
from mmlape.layers.attention import LINEAR_GRID, partition
from mmlape.layers.windows import shift_mask
from mmlape.layout import Layout

from .loading import Layers, Result, find_stages

# Attention weights held at a time.
CHUNK = 16_000_000
_WITH_MAPS = (Attention, SpatialReductionAttention, WideValueAttention)
_WITH_DISTANCES = (ShiftedWindowAttention, *_WITH_MAPS)


class Call(NamedTuple):
    """The arguments of ``scaled_dot_product_attention``."""

    query: Tensor  #: ``(..., Q, D)``.
    key: Tensor  #: ``(..., K, D)``.
    value: Tensor | None = None
    attn_mask: Tensor | None = None  #: Added to the scores, or a mask of what is attended to.
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None  #: Of the scores; None: ``1 / sqrt(D)``.

    def rows(self, chosen: slice) -> Call:
        """Return the call with the ``chosen`` queries only."""
        mask = None if self.attn_mask is None else self.attn_mask[..., chosen, :]
        return self._replace(query=self.query[..., chosen, :], attn_mask=mask)

    def scores(self) -> Tensor:
        """Compute the input of the softmax, ``(..., Q, K)`` float32."""
        scale = self.query.shape[-1] ** -0.5 if self.scale is None else self.scale
        scores = (self.query * scale @ self.key.mT).float()
        if self.attn_mask is None:
            return scores
        if self.attn_mask.dtype == torch.bool:
            return scores.masked_fill(~self.attn_mask, -math.inf)
        return scores + self.attn_mask


class _Recorder(TorchFunctionMode):
    """Hands each call of ``scaled_dot_product_attention`` to ``record``, with the layer that makes it."""

    def __init__(self, record: Callable[[nn.Module, Layout, Call], None]) -> None:
        super().__init__()
        self.record = record
        self.where: tuple[nn.Module, Layout] | None = None

    def enter(self, attention: nn.Module, args: tuple) -> None:
        self.where = attention, Layout.of(*args[:2])

    def leave(self, *_: object) -> None:
        self.where = None

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention and self.where is not None:
            self.record(*self.where, Call(*args, **kwargs))
        return func(*args, **kwargs)


def record_attention(
    backbone: nn.Module,
    image: Tensor,
    attentions: Iterable[nn.Module],
    record: Callable[[nn.Module, Layout, Call], None],
) -> None:
    """Run a network in evaluation mode on an image ``(1, 3, height, width)`` without gradients, and call ``record``
    with each of the attention layers, the layout of its tokens, and every call that it makes."""
    recorder = _Recorder(record)
    with torch.no_grad(), recorder, ExitStack() as hooks:
        for attention in attentions:
            hooks.enter_context(attention.register_forward_pre_hook(recorder.enter))
            hooks.enter_context(attention.register_forward_hook(recorder.leave))
        backbone(image)


@dataclass(frozen=True)
class ClassAttention(Result):
    """The attention weights of a prefix token, of one image."""

    stage: str  #: Name of the stage.
    layers: np.ndarray  #: ``(L,)``, 0-based indices.
    #: ``(L, heads, H, W)``, the weights of patches; with those of prefix tokens (and EoMT's queries) they sum to 1.
    maps: np.ndarray
    prefix: np.ndarray  #: ``(L, heads, P)``, the weights of prefix tokens.
    image: np.ndarray  #: ``(height, width)``, the mean of its channels, as the network got it.


def class_attention(
    backbone: nn.Module,
    image: Tensor,
    part: str | None = None,
    layers: Layers = None,
    token: int = 0,
) -> ClassAttention:
    """How much the class token takes from each patch, by the very queries, keys and scores that a layer computes.

    Args:
        backbone: In evaluation mode, with a class token or other prefix tokens.
        part: Name of the layers, e.g. ``'vit.blocks'``. Default None: those of the last stage with prefix tokens.
        layers: 0-based. Default None: the last one.
        token: Which prefix token: class, distillation and register tokens, those that there are, in this order.
            Default 0, the class token where there is one.

    Raises ValueError if there are no prefix tokens, no such layer or token, a layer before they join, or one in which
    they do not look at all patches (chosen keys)."""
    stages = [stage for stage in find_stages(backbone, part) if stage.prefix]
    if not stages:
        raise ValueError(
            f'{type(backbone).__name__} has no class token: e.g. mmlape.VisionTransformer has '
            "one with with_cls_token=True and out_type='cls_token'"
        )
    stage = stages[-1]
    last = len(stage.blocks) - 1
    attentions = _attentions(stage, [last] if layers is None else layers, _WITH_MAPS)
    check_positive_int('token', token, minimum=0, maximum=stage.num_prefix - 1)
    chosen = list(attentions.values())
    if chosen[0] < stage.prefix_after:
        raise ValueError(
            f'layers must be {stage.prefix_after} to {last}, where prefix tokens have joined '
            f'{stage.name!r}, got {chosen[0]}'
        )
    found: dict[int, tuple[Layout, Tensor]] = {}

    def keep(attention: nn.Module, layout: Layout, call: Call) -> None:
        queries = layout.num_prefix - stage.num_prefix  # EoMT's queries come first
        # With windows the call of prefix tokens to all follows that of the windows: the last one counts.
        scores = call.rows(slice(queries + token, queries + token + 1)).scores()
        weights = scores[0].softmax(-1).squeeze(-2)[..., queries:].cpu()
        found[attentions[attention]] = layout, weights

    record_attention(backbone, image, attentions, keep)
    layout = found[chosen[0]][0]
    prefix, cells = torch.stack([found[layer][1] for layer in chosen]).split(
        [stage.num_prefix, layout.num_cells], dim=-1
    )
    maps = cells.unflatten(-1, layout.grid).numpy()
    shown = image[0].mean(0).cpu().numpy()
    return ClassAttention(stage.name, np.asarray(chosen), maps, prefix.numpy(), shown)


def token_attention(backbone: nn.Module, image: Tensor, place: tuple[float, float]) -> np.ndarray:
    """Where the token of a patch looks in the last layer, as class attention (DINO, Figure 1) is of the class token.

    Args:
        backbone: In evaluation mode.
        image: ``(1, 3, height, width)``.
        place: Row and column of a pixel in the patch.

    Returns:
        ``(H, W)`` float32, the mean of the heads' weights of all patches; with those of prefix tokens they sum to 1.

    Raises ValueError if that layer's tokens do not look at all patches (windows, reduced or chosen keys)."""
    stage = find_stages(backbone)[-1]
    attentions = _attentions(stage, [len(stage.blocks) - 1], _WITH_MAPS)
    sides = patch_sides(backbone, stage)
    found: list[np.ndarray] = []

    def keep(_: nn.Module, layout: Layout, call: Call) -> None:
        height, width = layout.grid
        row, column = (
            min(int(each / side), cells - 1)
            for each, cells, side in zip(place, layout.grid, sides, strict=True)
        )
        token = layout.num_prefix + row * width + column
        if {call.query.shape[-2], call.key.shape[-2]} != {layout.num_tokens}:
            raise ValueError(f'the tokens of {stage.name!r} do not look at all patches')
        weights = call.rows(slice(token, token + 1)).scores()[0].softmax(-1).mean(dim=(0, 1))
        found.append(weights[layout.num_prefix :].view(height, width).cpu().numpy())

    record_attention(backbone, image, attentions, keep)
    return found[-1]


def patch_sides(backbone: nn.Module, stage: Stage) -> tuple[int, int]:
    """Height and width in pixels of a stage's patches; the last ones of an image may reach beyond its border."""
    height = width = 1
    for each in find_stages(backbone):
        rows, columns = each.embed.stride
        height, width = height * rows, width * columns
        if each.name == stage.name:
            break
    return height, width


def _attentions(stage: Stage, layers: Layers, known: tuple[type, ...]) -> dict[nn.Module, int]:
    """The attention of each layer asked for, with its index."""
    found = {}
    for layer in check_layers(f'layers of {stage.name!r}', layers, len(stage.blocks)):
        attention = stage.blocks[layer].get_submodule('attn')
        # The weights of a difference may be negative.
        if not isinstance(attention, known) or isinstance(attention, DifferentialAttention):
            raise ValueError(
                f'attention weights are defined for {[cls.__name__ for cls in known]}, '
                f'got {type(attention).__name__}'
            )
        found[attention] = layer
    return found


@dataclass(frozen=True)
class AttentionDistances(Result):
    """Mean attention distances of a stage."""

    stage: str  #: Its name.
    layers: np.ndarray  #: ``(L,)``, 0-based indices.
    distances: np.ndarray  #: ``(images, L, heads)``, in patches of the stage's grid.
    uniform: np.ndarray  #: ``(images, L)``, the distance where every key has the same weight.
    grids: np.ndarray  #: ``(images, 2)``, height and width in tokens.

    @property
    def mean(self) -> np.ndarray:
        """Mean over images, ``(L, heads)``."""
        return self.distances.mean(axis=0)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with the mean over images."""
        return super().arrays() | {'mean': self.mean}


def attention_distances(
    backbone: nn.Module, images: Iterable[Tensor], stages: Sequence[Stage], layers: Layers = None
) -> list[AttentionDistances]:
    """Mean attention distances of all heads.

    Raises ValueError if there is no image, a layer does not exist, or a layer's attention is none of ours."""
    attentions = [_attentions(stage, layers, _WITH_DISTANCES) for stage in stages]
    every = [attention for of_stage in attentions for attention in of_stage]
    measured = [_distances_of_image(backbone, image, every) for image in images]
    if not measured:
        raise ValueError('images must hold at least one image')
    found = []
    for stage, of_stage in zip(stages, attentions):
        distances, uniform, grids = (
            np.asarray([[image[attention][part] for attention in of_stage] for image in measured])
            for part in range(3)
        )
        numbers = np.asarray(list(of_stage.values()))
        found.append(AttentionDistances(stage.name, numbers, distances, uniform, grids[:, 0]))
    return found


def _distances_of_image(
    backbone: nn.Module, image: Tensor, attentions: Iterable[nn.Module]
) -> dict[nn.Module, tuple]:
    """Distances per head, that of uniform weights, and the grid, by layer."""
    found: dict[nn.Module, tuple] = {}

    def measure(attention: nn.Module, layout: Layout, call: Call) -> None:
        if attention in found:  # with windows a second call follows: that of prefix tokens to all
            return
        places = places_of(attention, layout)
        windows = len(places.queries)
        if len(call.query) != windows:  # they stand beside the heads
            parts: list[Any] = [call.query, call.key, call.attn_mask]
            query, key, mask = (x.unflatten(1, (windows, -1)).flatten(0, 1) for x in parts)
            call = call._replace(query=query, key=key, attn_mask=mask)
        zero_query, zero_key = (where[:, None, :, :1].mul(0).nan_to_num() for where in places[:2])
        equal = Call(zero_query, zero_key, attn_mask=places.apart)
        distances = mean_distance(call, places).cpu().numpy()
        found[attention] = distances, float(mean_distance(equal, places)), layout.grid

    record_attention(backbone, image, attentions, measure)
    return found


class Places(NamedTuple):
    """Row and column of queries and keys in the grid; NaN for what has no place in the image."""

    queries: Tensor  #: ``(R, Q, 2)``.
    keys: Tensor  #: ``(R, K, 2)``.
    #: ``(R, 1, Q, K)``, what keeps cells apart that a shift of the windows brought together; None without one.
    apart: Tensor | None = None


def mean_distance(call: Call, places: Places) -> Tensor:
    """Mean attention distance of every head, ``(heads,)`` float64, without holding all weights at once.

    Args:
        call: Queries ``(R, heads, Q, D)`` and keys ``(R, heads, K, D)``.
        places: Where they are."""
    windows, heads, num_queries, _ = call.query.shape
    has_query, has_key = (~where.isnan().any(-1) for where in places[:2])
    total, step = 0.0, max(CHUNK // (windows * heads * call.key.shape[2]), 1)
    for start in range(0, num_queries, step):
        rows = slice(start, start + step)
        weights = call.rows(rows).scores().masked_fill(~has_key[:, None, None], -math.inf)
        offsets = places.queries[:, rows, None] - places.keys[:, None]
        distances = offsets.norm(dim=-1).nan_to_num()[:, None]
        per_query = (weights.softmax(dim=-1) * distances).sum(dim=-1)
        per_query = per_query.masked_fill(~has_query[:, None, rows], 0)
        total = total + per_query.sum(dim=(0, 2), dtype=torch.float64)
    return total / has_query.sum()


def places_of(attention: Any, layout: Layout) -> Places:
    """Where the queries and keys of one of our attention layers are: coordinates go the way of its tokens."""
    sides = (torch.arange(side, dtype=torch.float32) for side in layout.grid)
    cells = torch.stack(torch.meshgrid(*sides, indexing='ij'), dim=-1)[None]  # (1, H, W, 2)
    window = getattr(attention, 'window_size', None)
    if window is not None:
        down, right = (-side % length for side, length in zip(layout.grid, window))
        cells = F.pad(cells, (0, 0, 0, right, 0, down), value=math.nan)
        padded, between = (layout[0] + down, layout[1] + right), None
        if isinstance(attention, ShiftedWindowAttention):
            shift = attention.shift_on(padded)
            cells = cells.roll([-step for step in shift], (1, 2))
            between = shift_mask(padded, window, shift, cells.device)[:, None]
        cells = partition(cells.flatten(1, 2), padded, window)
        return Places(cells, _with_prefix(cells, layout.num_prefix), between)
    queries = _with_prefix(cells.flatten(1, 2), layout.num_prefix)
    keys = pool_keys(attention, cells.permute(0, 3, 1, 2)).flatten(2).mT
    return Places(queries, _with_prefix(keys, layout.num_prefix))


def pool_keys(attention: Any, maps: Tensor) -> Tensor:
    """Average maps ``(B, C, H, W)`` over the cells that each key of an attention layer stands for."""
    if not getattr(attention, 'reduces', False):
        return maps
    if attention.linear:
        return F.adaptive_avg_pool2d(maps, LINEAR_GRID)
    return F.avg_pool2d(maps, attention.sr_ratio, ceil_mode=True)


def _with_prefix(cells: Tensor, prefix: int) -> Tensor:
    return F.pad(cells, (0, 0, prefix, 0), value=math.nan)
