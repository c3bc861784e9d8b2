"""Rotary position embedding (RoPE) on a grid."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.checks import check_grid, check_number, check_option, check_options
from mmlape.layout import Grid, Layout, cached, centres
from mmlape.registry import MODELS

from .attention_position import AttentionPosition

Turns = tuple[Tensor, Tensor]


class RandomCoordinates:
    """``random`` of :class:`RotaryPosition`. Defaults change nothing, and draw no numbers.

    Numbers are drawn by timm's steps from torch's generator of the CPU: equal seeds give equal coordinates on all
    devices.
    """

    def __init__(self, shift: float = 0.0, jitter: float = 1.0, rescale: float = 1.0) -> None:
        self.shift = check_number('shift', shift, minimum=0)
        self.jitter = check_number('jitter', jitter, minimum=1)
        self.rescale = check_number('rescale', rescale, minimum=1)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Draw the shift that is added to the coordinates, then their factor, ``(2,)`` each."""
        shift, factor = torch.zeros(2), torch.ones(2)
        if self.shift:
            shift.uniform_(-self.shift, self.shift)
        for largest, axes in ((self.jitter, 2), (self.rescale, 1)):
            if largest > 1:
                power = math.log(largest)
                factor = factor * torch.empty(axes).uniform_(-power, power).exp()
        return shift, factor


class Rule(NamedTuple):
    """How cells become angles; see :class:`RotaryPosition`. Hashable, for the cache."""

    channels: int
    temperature: float
    coordinates: str
    reference: Grid | None
    offset: float
    columns_first: bool
    pairs: str


class Rotary(AttentionPosition):
    """Base class: turns pairs of channels of queries and keys, but those of prefix tokens.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size: As in :class:`AttentionPosition`, but ``C / heads``
            must be a multiple of 4.
        pairs: Channels that are turned together: ``'neighbours'`` (default), or ``'halves'``: one of each half of a
            head (DINOv3).

    Raises:
        ValueError: If the channels of a head are not a multiple of 4, or ``pairs`` is unknown.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        pairs: str = 'neighbours',
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.head_dims = self.embed_dims // self.num_heads
        if self.head_dims % 4:
            raise ValueError(
                f'the channels of a head must be a multiple of 4, got {embed_dims} channels in {num_heads} heads'
            )
        self.pairs = check_option('pairs', pairs, _PAIRS)

    def prepare(self, query: Layout, key: Layout, drawn: Any = None) -> tuple[Turns, ...]:
        """Cosines and sines of queries and of keys, of all heads or of each, ``(P + H * W, C / heads)``."""
        turns = self.turns(query, query.grid, drawn)
        same = (query.grid, query.num_prefix) == (key.grid, key.num_prefix)
        return turns, turns if same else self.turns(key, query.grid, drawn)

    @abstractmethod
    def turns(self, layout: Layout, extent: Grid, drawn: Any) -> Turns:
        """Return cosines and sines of a layout, in coordinates of a grid ``extent``."""

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: tuple[Turns, ...]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Turn queries and keys, ``(B, heads, tokens, C / heads)`` each."""
        across = _PAIRS[self.pairs][1]
        turned = [
            (heads * cosine + across(heads) * sine).to(heads.dtype)
            for heads, (cosine, sine) in zip((query, key), rows)
        ]
        return turned[0], turned[1], value


@MODELS.register_module()
class RotaryPosition(Rotary):
    """Pairs of channels of queries and keys, turned by the row in the first half of a head's frequencies and by the
    column in the second (RoFormer, Neurocomputing 2024, along two axes as in EVA-02, IVC 2024, and DINOv3, arXiv 2025).

    It has no parameters, so one module serves all layers, and its sines and cosines are made once per pass.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size, pairs: As in :class:`Rotary`.
        temperature: Wavelengths grow from 2 pi to 2 pi times this, in units of the coordinates. Default 10000.
        rescale: Stretch the coordinates of every grid to those of ``reference``, as EVA-02 does. Default False.
        reference: Grid in tokens, one integer or a pair, for ``rescale``. Default None: the pre-training grid.
        coordinates: ``'cells'`` (default): 0, 1, ...; or ``'centred'``: from -2 pi to 2 pi over the image, whatever its
            grid, at the centres of cells (DINOv3).
        offset: Added to coordinates in cells, before they are stretched (Perception Encoder: 1). Default 0.
        columns_first: Turn by the column in the first half of the frequencies, by the row in the second (RoPE-ViT).
            Default False.
        random: Random augmentation of coordinates in training (DINOv3), some of

            * ``shift``: every pass adds a number between minus and plus this to the coordinates of each axis: in cells,
              or where 1 is half the image if they are ``'centred'``;
            * ``jitter``: every pass multiplies the coordinates of each axis by a number between 1 / this and this, with
              a uniform logarithm;
            * ``rescale``: likewise, with one number for both axes (2 for the published models of DINOv3 and Sapiens2).

            Numbers are the same for all images and layers of a pass. None are drawn in evaluation, or where position is
            frozen. Default None.

    Raises:
        ValueError: If a number is out of range, an option is unknown, or the ``coordinates`` do not use it.
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
        reference: int | Grid | None = None,
        coordinates: str = 'cells',
        offset: float = 0.0,
        columns_first: bool = False,
        pairs: str = 'neighbours',
        random: dict | None = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size, pairs)
        self.temperature = check_number('temperature', temperature, above=0)
        check_option('coordinates', coordinates, ('cells', 'centred'))
        if reference is not None and not rescale:
            raise ValueError(f'reference={reference} is for rescale=True, got rescale={rescale}')
        if coordinates == 'centred' and (rescale or offset):
            raise ValueError(
                "coordinates='centred' know no cells: rescale and offset must be left out, "
                f'got rescale={rescale}, offset={offset}'
            )
        self.rescale = rescale
        unit = self.grid if reference is None else check_grid('reference', reference)
        self.rule = Rule(
            self.head_dims, self.temperature, coordinates, unit if rescale else None, offset, columns_first, self.pairs
        )  # fmt: skip
        check_options(RandomCoordinates, random or {})
        self.random = None if random is None else RandomCoordinates(**random)
        self.register_buffer('_like', torch.empty(0), persistent=False)

    def draw(self) -> tuple[Tensor, Tensor] | None:
        """Shift and factor of the coordinates of a pass, ``(2,)`` each; None in evaluation."""
        if self.random is None or not self.training:
            return None
        shift, factor = self.random.draw()
        return shift.to(self._like.device), factor.to(self._like.device)

    def turns(self, layout: Layout, extent: Grid, drawn: tuple[Tensor, Tensor] | None) -> Turns:
        """Cosines and sines ``(P + H * W, C / heads)``; of coordinates that are moved by what is drawn for a pass."""
        if drawn is None:
            return _turns(layout.grid, extent, layout.num_prefix, self.rule, self._like.device)
        shift, factor = drawn
        shift = shift * (2 * math.pi) if self.rule.coordinates == 'centred' else shift
        coordinates = _coordinates(layout.grid, extent, self.rule, shift.device)
        return _turned((coordinates + shift) * factor, layout.num_prefix, self.rule)

    def extra_repr(self) -> str:
        """The rule, which weights depend on; random augmentation is not part of it."""
        return ', '.join(f'{name}={value}' for name, value in self.rule._asdict().items())


@MODELS.register_module()
class MixedRotaryPosition(Rotary):
    """Rotary position with learned frequencies: every pair of channels of every head and layer is turned by its own sum
    of row and column (RoPE-Mixed; Rotary Position Embedding for Vision Transformer, ECCV 2024, section 3.2).

    Every layer has a module of its own. Initially half of a head's pairs are turned along one direction, random for
    each head and layer, and half along the perpendicular one.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size, pairs: As in :class:`Rotary`.
        temperature: Initial wavelengths grow from 2 pi to 2 pi times this, in cells. Default 10.
        columns_first: The first of both frequencies is the column's. Default True, as published.

    Raises:
        ValueError: If a number is out of range, or ``pairs`` is unknown.

    Shape:
        ``freqs``: ``(2, heads, C / heads / 2)``, of column and row.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        temperature: float = 10.0,
        columns_first: bool = True,
        pairs: str = 'neighbours',
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size, pairs)
        self.temperature = check_number('temperature', temperature, above=0)
        self.rule = Rule(
            self.head_dims, self.temperature, 'cells', None, 0.0, columns_first, self.pairs
        )
        angles = torch.rand(self.num_heads, 1) * 2 * math.pi
        angles = torch.stack([angles, angles + math.pi / 2], dim=1)
        lengths = _frequencies(self.head_dims // 4, self.temperature, angles.device)
        along = torch.stack([angles.cos(), angles.sin()])  # (2, heads, 2, 1)
        self.freqs = torch.nn.Parameter((along * lengths).flatten(2))

    def turns(self, layout: Layout, extent: Grid, drawn: Any = None) -> Turns:
        """Cosines and sines ``(heads, P + H * W, C / heads)``."""
        dtype = torch.promote_types(self.freqs.dtype, torch.float32)
        first, second = self.freqs.to(dtype).unsqueeze(2)
        cells = _coordinates(layout.grid, extent, self.rule, self.freqs.device)
        # No matrix product, which autocast would do in half precision.
        angles = cells[:, :1] * first + cells[:, 1:] * second
        return _cosines_and_sines(angles, layout.num_prefix, self.pairs)

    def extra_repr(self) -> str:
        return f'columns_first={self.rule.columns_first}, pairs={self.pairs!r}'


@cached
def _turns(grid: Grid, extent: Grid, num_prefix: int, rule: Rule, device: torch.device) -> Turns:
    """Cosines and sines ``(P + H * W, channels)``, float32, of the cells of ``grid`` in coordinates of ``extent``."""
    return _turned(_coordinates(grid, extent, rule, device), num_prefix, rule)


def _turned(coordinates: Tensor, num_prefix: int, rule: Rule) -> Turns:
    """Compute cosines and sines ``(P + H * W, channels)`` of coordinates ``(H * W, 2)``."""
    frequencies = _frequencies(rule.channels // 4, rule.temperature, coordinates.device)
    angles = coordinates[:, :, None] * frequencies
    return _cosines_and_sines(angles.flatten(1), num_prefix, rule.pairs)


@cached
def _coordinates(grid: Grid, extent: Grid, rule: Rule, device: torch.device) -> Tensor:
    """``(H * W, 2)``, float32, of the cells of ``grid`` in coordinates of ``extent``."""
    axes = []
    for axis, (count, side) in enumerate(zip(grid, extent)):
        steps = centres(count, side, device)
        if rule.coordinates == 'centred':
            steps = 2 * math.pi * ((steps + 0.5) / side * 2 - 1)
        else:
            steps = steps + rule.offset
        if rule.reference is not None:
            steps = steps * (rule.reference[axis] / side)
        axes.append(steps)
    cells = torch.cartesian_prod(*axes).view(-1, 2)
    return cells.flip(1) if rule.columns_first else cells


@cached
def _frequencies(count: int, temperature: float, device: torch.device) -> Tensor:
    return temperature ** -(torch.arange(count, device=device, dtype=torch.float32) / count)


def _cosines_and_sines(angles: Tensor, num_prefix: int, pairs: str) -> Turns:
    """``(..., P + H * W, channels)`` from angles ``(..., H * W, channels / 2)``."""
    angles = F.pad(_PAIRS[pairs][0](angles), (0, 0, num_prefix, 0))
    return angles.cos(), angles.sin()


def _across_neighbours(heads: Tensor) -> Tensor:
    even, odd = heads.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([-odd, even], dim=-1).flatten(-2)


def _across_halves(heads: Tensor) -> Tensor:
    first, second = heads.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)


# Angles per pair to angles per channel; channels to channels after a quarter turn.
_PAIRS: dict[str, tuple[Any, Any]] = {
    'neighbours': (lambda angles: angles.repeat_interleave(2, dim=-1), _across_neighbours),
    'halves': (lambda angles: torch.cat([angles, angles], dim=-1), _across_halves),
}
