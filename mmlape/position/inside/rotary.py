"""Rotary position: queries and keys are turned by angles that grow with their place."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.checks import check_number
from mmlape.kept import kept
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .base import AttentionPosition, centres


@MODELS.register_module()
class RotaryPosition(AttentionPosition):
    """Pairs of neighbouring channels of queries and keys, turned by the row in the first half of a head's channels and
    by the column in the second (RoFormer, Neurocomputing 2024, along two axes as in EVA-02, IVC 2024).

    It has no parameters, so one module serves all layers, and its sines and cosines are made once per pass. Prefix
    tokens are not turned. In a layer with windows places are those of the image.

    Args:
        embed_dims: Channels ``C``; ``C / heads`` must be a multiple of 4.
        num_heads: Heads.
        grid: Pre-training grid ``(H0, W0)`` in tokens; it matters for ``rescale`` alone.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Accepted for uniformity.
        temperature: Wavelengths grow from 2 pi to 2 pi times this, in cells. Default 10000.
        rescale: Stretch the coordinates of every grid to the pre-training grid's, as EVA-02 does. Default False.

    Raises:
        ValueError: If the channels of a head are no multiple of 4, or ``temperature`` is not above 0.
    """

    shared = True
    _like: Tensor

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        temperature: float = 10000.0,
        rescale: bool = False,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.head_dims = self.embed_dims // self.num_heads
        if self.head_dims % 4:
            raise ValueError(
                f'the channels of a head must be a multiple of 4, got {embed_dims} channels in {num_heads} heads'
            )
        self.temperature = check_number('temperature', temperature, above=0)
        self.rescale = rescale
        self.register_buffer('_like', torch.empty(0), persistent=False)

    def prepare(self, query: Layout, key: Layout) -> tuple[tuple[Tensor, Tensor], ...]:
        """Cosines and sines ``(P + H * W, C / heads)``, of queries and of keys."""
        unit = self.grid if self.rescale else None
        return tuple(
            _turns(
                layout.grid, query.grid, layout.num_prefix, unit, self.head_dims, self.temperature, self._like.device
            )
            for layout in (query, key)
        )  # fmt: skip

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[tuple[Tensor, Tensor], ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turn queries and keys, ``(B, heads, tokens, C / heads)`` each."""
        return _turn(query, *rows[0]), _turn(key, *rows[1]), value


@kept
def _turns(
    grid: Grid,
    extent: Grid,
    num_prefix: int,
    unit: Grid | None,
    channels: int,
    temperature: float,
    device: torch.device,
) -> tuple[Tensor, Tensor]:
    """Cosines and sines ``(P + H * W, channels)``, float32, of the cells of ``grid`` in coordinates of ``extent``."""
    places = [centres(count, side, device) for count, side in zip(grid, extent)]
    if unit is not None:
        places = [place * (side / own) for place, side, own in zip(places, unit, extent)]
    count = channels // 4
    frequencies = temperature ** -(torch.arange(count, device=device, dtype=torch.float32) / count)
    cells = torch.cartesian_prod(*places).view(-1, 2)
    angles = (cells[:, :, None] * frequencies).flatten(1).repeat_interleave(2, dim=1)
    angles = F.pad(angles, (0, 0, num_prefix, 0))
    return angles.cos(), angles.sin()


def _turn(heads: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    across = torch.stack([-odd, even], dim=-1).flatten(-2)
    return (heads * cosine + across * sine).to(heads.dtype)
