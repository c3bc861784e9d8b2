"""Attention within windows of the grid that are shifted from layer to layer (Swin)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.checks import check_grid, check_positive_int
from mmlape.kept import kept
from mmlape.layout import Grid, Layout
from mmlape.position import AttentionPosition, InsidePlan
from mmlape.registry import MODELS

from .attention import Attention, merge, partition


@MODELS.register_module()
class ShiftedWindowAttention(Attention):
    """Self-attention within windows, of a grid that is moved by a shift first (Swin, ICCV 2021, section 3.2).

    A grid that is no multiple of the window is padded with zeros at the bottom and right *before* the projection, so
    that padded cells have keys (the projection's bias) and take part in the softmax, as in the published detectors.
    What the shift brings in from the other side is not attended to.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        qkv_bias: Bias on the query, key and value projection. Default True.
        window_size: Window height and width in tokens, one integer or a pair. Default 7.
        shift: Cells, one integer or a pair, by which windows lie further down and right; less than the window. Default
            0.
        shift_alone: Shift a window that is alone on its axis too, so that its two parts do not see each other, as
            MMDetection and MMSegmentation do. Default False, as in the published classifiers and timm.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.
        position: What a position does to queries, keys, values and scores. Default None, nothing.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or a size, shift or rate is out of range.
    """

    window_size: Grid

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        window_size: int | Grid = 7,
        shift: int | Grid = 0,
        shift_alone: bool = False,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
    ) -> None:
        window = check_grid('window_size', window_size)
        super().__init__(
            embed_dims, num_heads, qkv_bias, window, attn_drop_rate, proj_drop_rate, position
        )
        self.shift = _check_shift(shift, window)
        self.shift_alone = shift_alone

    @property
    def takes_prefix(self) -> bool:
        """A prefix token has no window."""
        return False

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, inside: InsidePlan | None = None
    ) -> Tensor:
        """Attend; ``(B, H * W, C)`` to the same shape.

        Raises:
            ValueError: If there are prefix tokens.
        """
        layout = Layout.of(tokens, layout)
        if layout.num_prefix:
            raise ValueError(f'{type(self).__name__} takes no prefix tokens, got {layout}')
        window = self.window_size
        maps = tokens.unflatten(1, layout.grid)
        down, right = -layout[0] % window[0], -layout[1] % window[1]
        if down or right:  # padding by nothing is a copy
            maps = F.pad(maps, (0, 0, 0, right, 0, down))
        padded = Layout((maps.shape[1], maps.shape[2]))
        if inside is not None and padded.grid != layout.grid:
            inside = inside.position(padded)
        inside = self.inside(padded, padded, inside)
        shift = self.shift_on(padded.grid)
        if (
            inside is not None and inside.position.places
        ):  # where tokens are in the image, not in the moved one
            placed = inside.place(*self.split_heads(self.qkv(maps.flatten(1, 2)), 3))
            heads = tuple(
                self._cut(part.transpose(1, 2).unflatten(1, padded.grid), shift).transpose(1, 2)
                for part in placed
            )
        else:
            heads = self.split_heads(self.qkv(self._cut(maps, shift)), 3)
        read = self._attend_in_moved_windows(heads, layout, padded.grid, shift, inside)
        moved = merge(self.project(read), padded.grid, window).unflatten(1, padded.grid)
        maps = torch.roll(moved, shift, (1, 2)) if any(shift) else moved
        return maps[:, : layout[0], : layout[1]].flatten(1, 2)

    def shift_on(self, grid: Grid) -> Grid:
        """The shift of windows on a padded grid."""
        down, right = (
            step if self.shift_alone or side > own else 0
            for step, side, own in zip(self.shift, grid, self.window_size)
        )
        return down, right

    def _cut(self, maps: Tensor, shift: Grid) -> Tensor:
        """A map ``(B, H, W, ...)`` moved by the shift, in windows ``(B * windows, h * w, ...)``."""
        if any(shift):
            maps = torch.roll(maps, [-step for step in shift], (1, 2))
        return partition(maps.flatten(1, 2), (maps.shape[1], maps.shape[2]), self.window_size)

    def _attend_in_moved_windows(
        self,
        heads: tuple[Tensor, ...],
        layout: Layout,
        padded: Grid,
        shift: Grid,
        inside: InsidePlan | None,
    ) -> Tensor:
        """Attention of ``(B * windows, heads, h * w, D)``; returns ``(B * windows, h * w, C)``."""
        query, key, value = heads
        within = Layout(self.window_size)
        bias = None if inside is None else inside.bias(within, within)
        if any(shift):
            moved = apart(padded, self.window_size, shift, query.device)[:, None]
            bias = moved.expand(-1, self.num_heads, -1, -1) if bias is None else bias + moved
        if layout.mask is None and bias is not None and len(bias) > 1:
            # Windows as heads: what is added is the same for all images, and not repeated for them.
            query, key, value = (part.unflatten(0, (-1, len(bias))).flatten(1, 2) for part in heads)
            read = self.read(query, key, value, bias.flatten(0, 1)[None])
            return read.unflatten(1, (len(bias), -1)).flatten(0, 1).transpose(1, 2).flatten(2)
        mask = None
        if layout.mask is not None:  # what the grid is padded with counts, whatever the mask
            away = F.pad(
                (~layout.mask).unflatten(1, layout.grid),
                (0, padded[1] - layout[1], 0, padded[0] - layout[0]),
            )
            mask = ~self._cut(away.unsqueeze(-1), shift)[..., 0]
            bias = None if bias is None else bias.repeat(len(query) // len(bias), 1, 1, 1)
        return self.attend(query, key, value, bias, mask)


def _check_shift(shift: int | Grid, window: Grid) -> Grid:
    """``(vertical, horizontal)``, each from 0 to less than the window's side."""
    pair = (shift, shift) if isinstance(shift, int) else shift
    down, right = (
        check_positive_int('shift', step, minimum=0, maximum=side - 1)
        for step, side in zip(pair, window)
    )
    return down, right


@kept
def apart(grid: Grid, window: Grid, shift: Grid, device: torch.device) -> Tensor:
    """What is added to scores in the windows of a moved grid, ``(windows, h * w, h * w)``: 0, or -100, as published,
    for cells that the move brought together from two sides of the image."""
    region = torch.zeros(grid, device=device)
    for axis, (side, step) in enumerate(zip(grid, shift)):
        if step:
            moved = torch.arange(side, device=device) >= side - step
            shape = [-1, 1] if axis == 0 else [1, -1]
            region = region + moved.view(shape) * (axis + 1)
    cells = partition(region.flatten()[None, :, None], grid, window)[..., 0]
    return (cells[:, None] != cells[:, :, None]) * -100.0
