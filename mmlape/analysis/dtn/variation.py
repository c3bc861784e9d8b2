r"""How far tokens are from the mean that a norm subtracts (DTN, ICLR 2022, Figure 3 (b)).

The variation coefficient of a token x is :math:`\lVert (x - \mu) / x \rVert`, the Euclidean norm over its channels,
with :math:`\mu` the mean in the normalization layer: of LN the token's own, of IN each channel's over the tokens, of
DTN what its ratios make of the token's own and of those around it. Values of x near zero weigh heavily, so that a few
tokens can outweigh all others: quartiles say more than means.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mmlape.analysis.choices import COMPARED
from mmlape.analysis.results import Result
from mmlape.analysis.stages import Stage, norm_places
from mmlape.checks import check_option
from mmlape.layers.attention import AttentionLayer
from mmlape.layout import Layout
from mmlape.norm import DTN, LN, TokenGN, TokenIN
from mmlape.norm.windows import Windows

from .tokens import initial_norm, short_name


@dataclass(frozen=True)
class TokenVariation(Result):
    """Variation coefficients of the tokens with a place, of all images.

    Attributes:
        stage: Name of the stage.
        norm: ``'norm1'`` or ``'norm2'``.
        layers: ``(L,)``, 0-based indices.
        names: Whose mean: first that of the first layer's own norm, e.g. ``'DTN'``; then of those compared, ``'LN'``,
            ``'IN'`` or ``'DTN, initial'``.
        coefficients: ``(names, L, tokens)``; NaN in the first row for layers with another norm than the first.
    """

    stage: str
    norm: str
    layers: np.ndarray
    names: tuple[str, ...]
    coefficients: np.ndarray

    @property
    def quartiles(self) -> np.ndarray:
        """Lower quartile, median and upper quartile over tokens, ``(names, L, 3)``."""
        return np.moveaxis(np.quantile(self.coefficients, (0.25, 0.5, 0.75), axis=-1), 0, -1)

    def arrays(self) -> dict[str, np.ndarray]:
        """All of it for ``numpy.savez``, with the quartiles."""
        return super().arrays() | {'quartiles': self.quartiles}


def variation_coefficients(tokens: Tensor, mean: Tensor) -> Tensor:
    """``||(x - mean) / x||`` of every token.

    Args:
        tokens: ``(B, N, C)``.
        mean: What broadcasts with them.

    Returns:
        ``(B, N)``, float64. A channel in which a token is exactly zero is left out of its norm.
    """
    x = tokens.double()
    there = x != 0
    ratios = (x - mean.double()) / torch.where(there, x, torch.ones_like(x))
    return ratios.masked_fill(~there, 0).norm(dim=-1)


def mean_of(norm: nn.Module, tokens: Tensor, where: Layout) -> Tensor:
    """The mean that a norm subtracts from the tokens with a place.

    Args:
        norm: LN (PyTorch's too), IN, GN or DTN.
        tokens: ``(B, P + H * W, C)``.
        where: Their layout.

    Returns:
        What broadcasts with ``(B, H * W, C)``. A DTN that stabilises subtracts it from tokens whose heads are divided
        by their root mean square; it is given for the tokens as they are, which changes no coefficient.

    Raises:
        ValueError: If the norm subtracts no such mean.
    """
    _, cells = where.split(tokens.double())
    if isinstance(norm, DTN):
        return _mean_of_dtn(norm, cells, where)
    if isinstance(norm, TokenIN):
        return tokens.double().mean(dim=1, keepdim=True)
    if isinstance(norm, TokenGN):
        groups = tokens.double().unflatten(2, (norm.num_groups, -1)).mean(dim=(1, 3))
        return groups.repeat_interleave(tokens.shape[2] // norm.num_groups, dim=1)[:, None]
    if isinstance(norm, (LN, nn.LayerNorm)):
        return cells.mean(dim=2, keepdim=True)
    raise ValueError(
        f'a {type(norm).__name__} subtracts no mean that tokens could be compared with: the variation coefficient is '
        'that of LN, IN, GN and DTN'
    )


def token_variation(
    backbone: nn.Module,
    images: Iterable[Tensor],
    stages: Sequence[Stage],
    layers: int | Sequence[int] | None = None,
    norm: str = 'norm1',
    compared: Sequence[str] = COMPARED,
) -> list[TokenVariation]:
    """Variation coefficients before the norms of some layers.

    Args:
        backbone: In evaluation mode.
        images: ``(1, 3, height, width)`` each, of any size; see :func:`~mmlape.analysis.read_images`.
        stages: From :func:`~mmlape.analysis.find_stages`.
        layers: 0-based, of every stage. Default None: all.
        norm: ``'norm1'`` (default), before attention, or ``'norm2'``, before the feed-forward network.
        compared: Other norms, whose mean would be taken of the same tokens: any of ``'LN'``, ``'IN'``, ``'DTN'``; a DTN
            has initial weights. What the first layer has itself is left out. Default: all.

    Raises:
        ValueError: If there is no image, a layer or norm does not exist, or the layers have a norm without mean.
    """
    for name in compared:
        check_option('compared norm', name, COMPARED)
    collectors = [
        _Collector(stage, norm_places(stage, layers, (norm,)), compared) for stage in stages
    ]
    handles = [handle for collector in collectors for handle in collector.listen()]
    count = 0
    try:
        with torch.no_grad():
            for image in images:
                backbone(image)
                count += 1
    finally:
        for handle in handles:
            handle.remove()
    if not count:
        raise ValueError('images must hold at least one image')
    return [collector.found(norm) for collector in collectors]


class _Collector:
    """Coefficients of the layers of a stage, image after image."""

    def __init__(self, stage: Stage, places: Sequence[Any], compared: Sequence[str]) -> None:
        self.stage, self.places = stage, places
        own = short_name(places[0].norm)
        self.others = {
            f'{name}, initial' if name == 'DTN' else name: name for name in compared if name != own
        }
        self.names = (own, *self.others)
        self.kept: dict[tuple[str, int], list[np.ndarray]] = {}

    def listen(self) -> list:
        return [place.norm.register_forward_hook(self._keeper(place)) for place in self.places]

    def _keeper(self, place: Any):
        def keep(module: nn.Module, args: tuple, output: Tensor) -> None:
            tokens = args[0]
            layout = Layout.of(*args[:2])
            _, cells = layout.split(tokens)
            for name, norm in self._norms(place, tokens):
                coefficients = variation_coefficients(cells, mean_of(norm, tokens, layout))
                self.kept.setdefault((name, place.layer), []).append(coefficients[0].cpu().numpy())

        return keep

    def _norms(self, place: Any, tokens: Tensor):
        if short_name(place.norm) == self.names[0]:
            yield self.names[0], place.norm
        block = self.stage.blocks[place.layer].get_submodule('attn')
        heads = block.num_heads if isinstance(block, AttentionLayer) else 1
        for label, name in self.others.items():
            yield label, initial_norm(name, tokens.shape[2], heads).to(tokens.device)

    def found(self, norm: str) -> TokenVariation:
        layers = [place.layer for place in self.places]
        per_layer = {key: np.concatenate(values) for key, values in self.kept.items()}
        nothing = np.full(len(next(iter(per_layer.values()))), np.nan)
        rows = [[per_layer.get((name, layer), nothing) for layer in layers] for name in self.names]
        return TokenVariation(
            self.stage.name, norm, np.asarray(layers), self.names, np.asarray(rows)
        )


def _mean_of_dtn(norm: DTN, cells: Tensor, where: Layout) -> Tensor:
    """``r mu_token + (1 - r) P x`` by head (DTN, eq. 4), ``(B, H * W, C)``."""
    x = cells.unflatten(2, (norm.num_heads, -1))
    scale = torch.ones_like(x[..., :1])
    if norm.stabilize:
        scale = (x.square().mean(dim=-1, keepdim=True) + norm.eps).sqrt()
    x = x / scale
    windows = Windows(where.grid, norm.pool)
    P_y, P_x = (part.double().expand(norm.num_heads, -1, -1) for part in norm.axis_maps(where.grid))
    around = torch.einsum('gya,gxe,baegd->byxgd', P_y, P_x, windows.mean(x))
    around = windows.spread(around).expand_as(windows.view(x)).reshape(x.shape)
    own = x.mean(dim=(2, 3), keepdim=True)
    mean = torch.lerp(around, own.expand_as(around), norm.ratio_mean(x).expand_as(around))
    return (mean * scale).flatten(2)
