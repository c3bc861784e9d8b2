"""Attention in shifted windows (Swin), and LeViT's attention and subsampling."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_number, check_positive_int
from mmlape.layout import Grid, Layout, cached
from mmlape.norm import build_token_norm
from mmlape.position import AttentionPlan, AttentionPosition, RelativePositionBias
from mmlape.registry import MODELS

from .attention import Attention, AttentionLayer, merge, merge_heads, partition
from .basic import NormedLinear, PlainLinear
from .mlp import NormedMlp
from .stems import Stem, to_tokens


@MODELS.register_module()
class ShiftedWindowAttention(Attention):
    """Self-attention within windows, of a grid that is moved by a shift first (Swin, ICCV 2021, section 3.2).

    A grid that is not a multiple of the window is padded with zeros at the bottom and right *before* the projection, so
    that padded cells have keys (the projection's bias) and take part in the softmax, as in the published detectors.
    What the shift brings in from the other side is not attended to.

    Args:
        embed_dims, num_heads, attn_drop_rate, proj_drop_rate, position: As in :class:`AttentionLayer`.
        qkv_bias: Bias on the query, key and value projection. Default True.
        window_size: Window height and width in tokens, one integer or a pair. Default 7.
        shift: Cells, one integer or a pair, by which windows lie further down and right; less than the window. Default
            0.
        shift_alone: Shift a window that is alone on its axis too, so that its two parts do not see each other, as
            MMDetection and MMSegmentation do. Default False, as in the published classifiers and timm.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or a size, shift or rate is out of range.
    """

    window_size: Grid
    takes_prefix = False  # a prefix token has no window

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
        pair = (shift, shift) if isinstance(shift, int) else shift
        down, right = (
            check_positive_int('shift', step, minimum=0, maximum=side - 1)
            for step, side in zip(pair, window)
        )
        self.shift = (down, right)
        self.shift_alone = shift_alone

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, plan: AttentionPlan | None = None
    ) -> Tensor:
        """Attend; ``(B, H * W, C)`` to the same shape.

        Raises:
            ValueError: If there are prefix tokens.
        """
        layout = Layout.of(tokens, layout)
        if layout.num_prefix:
            raise ValueError(f'{type(self).__name__} takes no prefix tokens, got {layout}')
        window = self.window_size
        down, right = -layout[0] % window[0], -layout[1] % window[1]
        padded = (layout[0] + down, layout[1] + right)
        padding = (0, 0, 0, right, 0, down)
        plan = self.plan_for(layout, layout, plan)
        shift = self.shift_on(padded)
        if plan is not None and plan.changes_queries:
            # Where tokens are in the image, not in the padded and moved one.
            placed = plan.place(*self.split_heads(self.qkv(tokens), 3))
            maps = [part.transpose(1, 2).unflatten(1, layout.grid) for part in placed]
            if down or right:
                maps = [
                    F.pad(part, (0, 0, *padding)) + added
                    for part, added in zip(maps, self._of_padding(maps, padding))
                ]
            heads = tuple(
                self._cut(part.flatten(1, 2), padded, shift).transpose(1, 2) for part in maps
            )
        else:
            if down or right:  # padding by nothing is a copy
                tokens = F.pad(tokens.unflatten(1, layout.grid), padding).flatten(1, 2)
            heads = self.split_heads(self.qkv(self._cut(tokens, padded, shift)), 3)
        read = self.project(self._attend_in_moved_windows(heads, layout, padded, shift, plan))
        if not any(shift):
            return merge(read, layout.grid, window)
        moved = torch.roll(merge(read, padded, window).unflatten(1, padded), shift, (1, 2))
        return moved[:, : layout[0], : layout[1]].flatten(1, 2)

    def shift_on(self, grid: Grid) -> Grid:
        """The shift of windows on a padded grid."""
        down, right = (
            step if self.shift_alone or side > own else 0
            for step, side, own in zip(self.shift, grid, self.window_size)
        )
        return down, right

    def _of_padding(self, maps: list[Tensor], padding: tuple[int, ...]) -> Iterator[Tensor]:
        """Queries, keys and values ``(1, H, W, heads, D)`` of padded cells, which have no position; zeros elsewhere."""
        height, width = maps[0].shape[1:3]
        outside = 1 - F.pad(maps[0].new_ones(1, height, width, 1), padding)
        nothing = self.qkv(maps[0].new_zeros(1, 1, self.qkv.in_features))
        for part, cell in zip(maps, self.split_heads(nothing, 3)):
            cell = F.pad(cell.transpose(1, 2), (0, part.shape[-1] - cell.shape[-1]))
            yield outside[..., None] * cell[:, :, None]

    def _cut(self, cells: Tensor, grid: Grid, shift: Grid) -> Tensor:
        """Cells ``(B, H * W, ...)`` moved by the shift, in windows ``(B * windows, h * w, ...)``."""
        if any(shift):
            steps = [-step for step in shift]
            cells = torch.roll(cells.unflatten(1, grid), steps, (1, 2)).flatten(1, 2)
        return partition(cells, grid, self.window_size)

    def _attend_in_moved_windows(
        self,
        heads: tuple[Tensor, ...],
        layout: Layout,
        padded: Grid,
        shift: Grid,
        plan: AttentionPlan | None,
    ) -> Tensor:
        """Attention of ``(B * windows, heads, h * w, D)``; returns ``(B * windows, h * w, C)``."""
        query, key, value = heads
        within = Layout(self.window_size)
        bias = None if plan is None else plan.bias(within, within)
        if any(shift):
            moved = shift_mask(padded, self.window_size, shift, query.device)[:, None]
            bias = moved.expand(-1, self.num_heads, -1, -1) if bias is None else bias + moved
        if layout.mask is None and bias is not None and len(bias) > 1:
            # Windows as heads: what is added is the same for all images, and not repeated for them.
            query, key, value = (part.unflatten(0, (-1, len(bias))).flatten(1, 2) for part in heads)
            read = self.read(query, key, value, bias.flatten(0, 1)[None])
            return read.unflatten(1, (len(bias), -1)).transpose(2, 3).flatten(3).flatten(0, 1)
        mask = None
        if layout.mask is not None:  # what the grid is padded with counts, whatever the mask
            away = F.pad(
                (~layout.mask).unflatten(1, layout.grid),
                (0, padded[1] - layout[1], 0, padded[0] - layout[0]),
            )
            mask = ~self._cut(away.flatten(1).unsqueeze(-1), padded, shift)[..., 0]
            bias = None if bias is None else bias.repeat(len(query) // len(bias), 1, 1, 1)
        return merge_heads(self.read(query, key, value, bias, mask))


@cached
def shift_mask(grid: Grid, window: Grid, shift: Grid, device: torch.device) -> Tensor:
    """Return the mask that is added to scores in the windows of a moved grid, ``(windows, h * w, h * w)``: 0, or -100,
    as published, for cells that the move brought together from two sides of the image."""
    region = torch.zeros(grid, device=device)
    for axis, (side, step) in enumerate(zip(grid, shift)):
        if step:
            moved = torch.arange(side, device=device) >= side - step
            shape = [-1, 1] if axis == 0 else [1, -1]
            region = region + moved.view(shape) * (axis + 1)
    cells = partition(region.flatten()[None, :, None], grid, window)[..., 0]
    return (cells[:, None] != cells[:, :, None]) * -100.0


class WideValues(AttentionLayer):
    """Attention layers whose heads have ``key_dims`` channels of queries and keys, and ``value_dims`` of values."""

    key_dims: int

    def __init__(
        self,
        num_heads: int,
        key_dims: int,
        value_ratio: float,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ) -> None:
        check_positive_int('num_heads', num_heads)
        dims = num_heads * check_positive_int('key_dims', key_dims)
        super().__init__(dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.key_dims = key_dims
        self.value_dims = int(key_dims * check_number('value_ratio', value_ratio, above=0))
        if not self.value_dims:
            raise ValueError(f'value_ratio={value_ratio} leaves no channel of key_dims={key_dims}')

    def heads(self, tokens: Tensor, *widths: int) -> tuple[Tensor, ...]:
        """``(B, N, heads * sum(widths))`` as ``(B, heads, N, width)`` for every width, side by side in each head."""
        return tokens.unflatten(-1, (self.num_heads, -1)).transpose(1, 2).split(widths, dim=-1)


@MODELS.register_module()
class WideValueAttention(WideValues):
    """Self-attention whose values are wider than its queries and keys, with a norm after their projection and a
    hardswish before the output's (LeViT, ICCV 2021, section 4.2); the norm of the result is its block's.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads.
        key_dims: Channels of a head's queries and keys. Default 16.
        value_ratio: Channels of its values to those. Default 2.
        attn_drop_rate, proj_drop_rate: As in :class:`AttentionLayer`.
        position: What a position adds to the scores (see :class:`~mmlape.position.AttentionPosition`). Default None.
        norm_cfg: Token norm of queries, keys and values. Default ``mmlape.TokenBN``.

    Raises:
        ValueError: If a value is out of range, or the position does more than add to scores.
    """

    # Whether a position may do more than add to the scores.
    takes_changed_queries = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        key_dims: int = 16,
        value_ratio: float = 2.0,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(num_heads, key_dims, value_ratio, attn_drop_rate, proj_drop_rate)
        width = 2 * self.key_dims + self.value_dims
        self.qkv = NormedLinear(embed_dims, num_heads * width, norm_cfg=norm_cfg)
        self.proj = PlainLinear(num_heads * self.value_dims, embed_dims, bias=False)
        self.position = position

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, plan: AttentionPlan | None = None
    ) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape."""
        layout = Layout.of(tokens, layout)
        widths = (self.key_dims, self.key_dims, self.value_dims)
        query, key, value = self.heads(self.qkv(tokens, layout), *widths)
        plan, bias = self.plan_for(layout, layout, plan), None
        if plan is not None:
            if plan.changes_queries:
                raise ValueError(
                    f'{type(self).__name__} takes a position that is added to scores, e.g. '
                    f'mmlape.RelativePositionBias, got {type(plan.position).__name__}'
                )
            bias = plan.bias(layout, layout)
        read = self.read(query, key, value, bias, layout.token_mask())
        return self.project(F.hardswish(merge_heads(read)))


class SubsamplingAttention(WideValues):
    """Every other row and column of a grid asks, all its cells answer; each linear layer is followed by a norm.

    Args: those of :class:`AttentionSubsampling`.
    """

    def __init__(
        self,
        in_channels: int,
        embed_dims: int,
        grid: Grid,
        num_heads: int,
        key_dims: int,
        value_ratio: float,
        norm_cfg: dict | None,
    ) -> None:
        super().__init__(num_heads, key_dims, value_ratio)
        width = self.key_dims + self.value_dims
        self.kv = NormedLinear(in_channels, num_heads * width, norm_cfg=norm_cfg)
        self.q = NormedLinear(in_channels, num_heads * key_dims, norm_cfg=norm_cfg)
        self.proj = NormedLinear(num_heads * self.value_dims, embed_dims, norm_cfg=norm_cfg)
        self.offset_bias = RelativePositionBias(in_channels, num_heads, grid, mirrored=True)

    def forward(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """``(B, H * W, in_channels)`` to ``(B, ceil(H / 2) * ceil(W / 2), C)`` and its layout."""
        key, value = self.heads(self.kv(tokens, layout), self.key_dims, self.value_dims)
        asking = tokens.unflatten(1, layout.grid)[:, ::2, ::2]
        half = Layout((asking.shape[1], asking.shape[2]))
        (query,) = self.heads(self.q(asking.flatten(1, 2), half), self.key_dims)
        read = self.read(query, key, value, self.offset_bias.bias(layout, layout, step=2))
        return self.proj(F.hardswish(merge_heads(read)), half), half


@MODELS.register_module()
class AttentionSubsampling(Stem):
    """From a map to one of half its sides by attention (LeViT, ICCV 2021, section 4.2, "shrinking attention"), with a
    bias for every offset that differs by more than signs, and a feed-forward network after it, which drops no paths.

    Args:
        in_channels: Channels of the map.
        grid: Sides ``(H0, W0)`` of the map at the pre-training image size; other sides get the bias resized.
        embed_dims: Channels ``C`` out. Default 192.
        num_heads: Heads. Default None: ``in_channels // key_dims``.
        key_dims: Channels of a head's queries and keys. Default 16.
        value_ratio: Channels of its values to those. Default 4.
        mlp_ratio: Hidden channels of the feed-forward network to ``C``. Default 2.
        norm_cfg: Token norm after every linear layer. Default ``mmlape.TokenBN``.

    Raises:
        ValueError: If a value is out of range.
    """

    stride = (2, 2)
    pads = False
    needs_grid = True
    kind = 'a map'

    def __init__(
        self,
        in_channels: int,
        grid: Grid,
        embed_dims: int = 192,
        num_heads: int | None = None,
        key_dims: int = 16,
        value_ratio: float = 4.0,
        mlp_ratio: float = 2.0,
        norm_cfg: dict | None = None,
    ) -> None:
        super().__init__(in_channels)
        check_positive_int('key_dims', key_dims)
        norm_cfg = dict(type='mmlape.TokenBN') if norm_cfg is None else norm_cfg
        heads = max(in_channels // key_dims, 1) if num_heads is None else num_heads
        self.attn = SubsamplingAttention(
            in_channels, embed_dims, grid, heads, key_dims, value_ratio, norm_cfg
        )
        hidden = int(embed_dims * check_number('mlp_ratio', mlp_ratio, above=0))
        self.mlp = NormedMlp(embed_dims, hidden, norm_cfg=norm_cfg)
        self.norm = build_token_norm(norm_cfg, embed_dims)
        nn.init.zeros_(self.norm.weight)

    def embed(self, maps: Tensor) -> tuple[Tensor, Layout]:
        tokens, layout = self.attn(*to_tokens(maps))
        return tokens + self.norm(self.mlp(tokens, layout), layout), layout
