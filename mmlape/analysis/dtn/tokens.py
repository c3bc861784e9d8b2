"""Tokens of an image before and after a norm, and what other norms would make of the same tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.analysis.choices import COMPARED
from mmlape.analysis.stages import NormPlace, Stage, norm_places
from mmlape.checks import check_option
from mmlape.layers.attention import AttentionLayer
from mmlape.layout import Grid, Layout
from mmlape.norm import DTN, LN, TokenIN

_KINDS = dict(zip(COMPARED, (LN, TokenIN, DTN)))
BEFORE = 'before'


@dataclass(frozen=True)
class NormTokens:
    """Tokens before and after one norm of a layer, of one image.

    Attributes:
        stage: Name of the stage.
        name: ``'layer 0 norm1'``, ...
        grid: ``(H, W)``.
        num_prefix: Prefix tokens ``P``, which come first.
        num_heads: Heads ``G``: those of the norm where it has some, else those of the layer's attention.
        versions: ``(P + H * W, C)`` each: ``'before'``; the layer's own norm, e.g. ``'after DTN'``; and for every other
            norm compared, e.g. ``'LN, initial'``, with its initial weights on the same tokens.
    """

    stage: str
    name: str
    grid: Grid
    num_prefix: int
    num_heads: int
    versions: dict[str, np.ndarray]


def norm_tokens(
    backbone: nn.Module,
    image: Tensor,
    stage: Stage,
    layers: int | Sequence[int] | None = None,
    norm: str = 'norm1',
    compared: Sequence[str] = COMPARED,
) -> list[NormTokens]:
    """Run a backbone on an image and keep what goes into and comes out of the norms of a stage.

    Args:
        backbone: In evaluation mode.
        image: ``(1, 3, height, width)``, see :func:`~mmlape.analysis.read_images`.
        stage: From :func:`~mmlape.analysis.find_stages`.
        layers: 0-based. Default None: all.
        norm: ``'norm1'`` (default), before attention, or ``'norm2'``, before the feed-forward network.
        compared: Other norms: any of ``'LN'``, ``'IN'``, ``'DTN'``; the kind that the layer has itself is left out.
            Default: all. Their weights are 1 and biases 0; a DTN has the heads of the layer, equation 7's positions and
            no pooling.

    Raises:
        ValueError: If a layer or a norm does not exist.
    """
    for name in compared:
        check_option('compared norm', name, COMPARED)
    places = norm_places(stage, layers, (norm,))
    found: dict[str, NormTokens] = {}

    def keep(place: NormPlace):
        def hook(module: nn.Module, args: tuple, output: Tensor) -> None:
            found[place.name] = _versions(stage, place, args, output, compared)

        return place.norm.register_forward_hook(hook)

    handles = [keep(place) for place in places]
    try:
        with torch.no_grad():
            backbone(image)
    finally:
        for handle in handles:
            handle.remove()
    return [found[place.name] for place in places]


def token_magnitudes(tokens: np.ndarray, num_heads: int) -> np.ndarray:
    """Euclidean length of every head of every token: ``(N, C)`` to ``(G, N)``.

    Args:
        tokens: ``(N, C)``.
        num_heads: ``G``; must divide C.
    """
    return np.linalg.norm(tokens.reshape(len(tokens), num_heads, -1), axis=2).T


def magnitude_maps(tokens: NormTokens) -> dict[str, np.ndarray]:
    """Lengths of every head of the tokens with a place, ``(G, H, W)`` for each version (ICLR 2022, Figure 1)."""
    return {
        name: token_magnitudes(values[tokens.num_prefix :], tokens.num_heads).reshape(
            -1, *tokens.grid
        )
        for name, values in tokens.versions.items()
    }


def _versions(
    stage: Stage,
    place: NormPlace,
    args: tuple,
    output: Tensor,
    compared: Sequence[str],
) -> NormTokens:
    tokens, where = args[:2]
    layout = Layout.of(tokens, where)
    norm, attention = place.norm, cast(AttentionLayer, stage.blocks[place.layer].attn)
    num_heads = norm.num_heads if isinstance(norm, DTN) else attention.num_heads
    versions = {BEFORE: tokens, f'after {short_name(norm)}': output}
    for name in compared:
        if not isinstance(norm, _KINDS[name]):
            initial = initial_norm(name, tokens.shape[2], num_heads).to(tokens.device)
            versions[f'{name}, initial'] = initial(tokens, where)
    return NormTokens(
        stage=stage.name,
        name=place.name,
        grid=layout.grid,
        num_prefix=layout.num_prefix,
        num_heads=num_heads,
        versions={name: value[0].cpu().float().numpy() for name, value in versions.items()},
    )


def initial_norm(name: str, channels: int, num_heads: int) -> nn.Module:
    """A norm of ``COMPARED`` with initial weights, always the same."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)  # of the heads of a DTN that equation 7 does not reach
        return DTN(channels, num_heads) if name == 'DTN' else _KINDS[name](channels)


def short_name(norm: nn.Module) -> str:
    """``'LN'``, ``'IN'`` or ``'DTN'``, else the name of its class."""
    return next(
        (name for name, kind in _KINDS.items() if isinstance(norm, kind)),
        type(norm).__name__,
    )
