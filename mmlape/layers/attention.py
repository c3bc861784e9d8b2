"""Softmax attention over all tokens of a grid or window, and with spatial reduction."""

from __future__ import annotations

import math
from functools import cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_divisor, check_grid, check_positive_int, check_rate
from mmlape.layout import Grid, Layout
from mmlape.norm import TokenRMS, build_single_norm, build_token_norm
from mmlape.position import AttentionPlan, AttentionPosition
from mmlape.registry import MODELS
from mmlape.runtime.autocast import cast_once
from mmlape.runtime.tracing import is_tracing

from .basic import PatchConv2d, build_dropout
from .stems import pad_to_multiple


class AttentionLayer(nn.Module):
    """Attention layers: shared heads, position and masks on the scores, and ``scaled_dot_product_attention``.

    A layer is called as ``attn(tokens, layout)``, with ``plan`` as third argument where one position serves all
    layers. It has its output projection as ``proj``.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.

    Attributes:
        position: What a position does to queries, keys, values and scores of this layer (see
            :class:`~mmlape.position.AttentionPosition`). Default None, nothing.
        key_dims: Channels of queries and keys by which scores are scaled. Default None: those of values.
        takes_position: Whether a position inside the attention is accepted.
        takes_changed_queries: Whether one that changes queries and keys has, too.
        takes_layer: Whether the network sets ``layer``, the number of the layer in its stage.
        takes_prefix: Whether tokens without a place on the grid can take part.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or a size or rate is out of range.
    """

    proj: nn.Linear
    key_dims: int | None = None
    takes_position: ClassVar[bool] = True
    takes_changed_queries: ClassVar[bool] = True
    takes_layer: ClassVar[bool] = False
    takes_prefix: bool = True

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ) -> None:
        super().__init__()
        self.num_heads = check_divisor('num_heads', num_heads, 'embed_dims', embed_dims)
        self.attn_drop_rate = check_rate('attn_drop_rate', attn_drop_rate)
        self.position: AttentionPosition | None = None
        self.proj_drop = build_dropout('proj_drop_rate', proj_drop_rate)

    def plan_for(
        self, query: Layout, key: Layout, given: AttentionPlan | None
    ) -> AttentionPlan | None:
        """The position of this layer, or the one that is given to all, which is ready for keys where queries are."""
        if self.position is not None:
            own = self.position(query, key)
            return own if given is None else own._replace(mask=given.mask)
        same = (key.grid, key.num_prefix) == (query.grid, query.num_prefix)
        if given is None or same or given.position is None:
            return given
        return given.position(query, key, given.drawn)

    def split_heads(self, tokens: Tensor, parts: int) -> tuple[Tensor, ...]:
        """``(B, N, parts * C)`` as ``parts`` of ``(B, heads, N, C / heads)``."""
        # Chunks, not an axis of parts: their gradients come back side by side, as the projection needs them.
        chunks = tokens.chunk(parts, dim=-1) if parts > 1 else (tokens,)
        shape = (*tokens.shape[:-1], self.num_heads, tokens.shape[-1] // parts // self.num_heads)
        heads: tuple[Tensor, ...] = ()
        for chunk in chunks:
            heads += (chunk.view(shape).transpose(1, 2),)
        return heads

    def read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Attend: return what each query reads, ``(B, heads, N, D)``.

        Queries and keys may be wider than values, by position. ``bias`` is added to the scores
        ``(B, heads, queries, keys)``, to which it broadcasts; ``mask`` ``(B, keys)`` is False for padding.
        """
        # Scale by the content width only, so that weights trained without position keep their scores.
        width = value.shape[-1]
        # Kernels without an N x N map want values as wide as queries.
        value = F.pad(value, (0, query.shape[-1] - width)) if query.shape[-1] > width else value
        bias = None if bias is None else bias.to(query.dtype)
        if mask is not None:
            hidden = ~mask[:, None, None]
            bias = query.new_zeros(()) if bias is None else bias
            # Finite: a query without any key then has a mean of all, not NaN.
            bias = bias.masked_fill(hidden, torch.finfo(query.dtype).min / 2)
            bias = bias.expand(-1, -1, query.shape[2], -1)
        dropout = self.attn_drop_rate if self.training else 0.0
        scale = (self.key_dims or width) ** -0.5
        if bias is not None and bias.requires_grad and query.is_cpu:
            out = _with_learned_bias(query * scale, key, value, bias, dropout)
        elif query.requires_grad and bias is None and not dropout:
            out = read_in_parts(query, key, value, _query_parts(query, key), scale)
        else:
            out = F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)
        return out[..., :width]

    def project(self, tokens: Tensor) -> Tensor:
        """The output projection and its dropout."""
        return self.proj_drop(self.proj(tokens))


def merge_heads(heads: Tensor) -> Tensor:
    """``(B, heads, N, D)`` as ``(B, N, heads * D)``."""
    return heads.transpose(1, 2).flatten(2)


@MODELS.register_module()
class Attention(AttentionLayer):
    """Self-attention through ``scaled_dot_product_attention``; no N x N map is held.

    Parameter names are timm's: ``qkv``, ``q_norm``, ``k_norm``, ``norm``, ``proj``.

    With a ``window_size``, the grid is cut into windows and patch tokens attend within their window. Where the grid is
    no multiple of the window, queries, keys and values are padded with zeros at the bottom and right *after* their
    projection, so that padded keys take part in the softmax: this is what published ViT-Adapter detection weights
    were trained with (those around BEiT: *before* it, as ``mmlape.ShiftedWindowAttention`` does). Prefix tokens are
    seen by every window and attend to all tokens.

    Args:
        embed_dims, num_heads, attn_drop_rate, proj_drop_rate, position: As in :class:`AttentionLayer`.
        qkv_bias: Bias on the query, key and value projection. Default True.
        proj_bias: Bias on the output projection. Default True.
        window_size: Window height and width in tokens, one integer or a pair; None (default) for global attention.
        qk_norm: Token norm of queries and of keys, over the channels of a head, before position (ViT-22B, ICML 2023).
            Default None, none.
        inner_norm: Token norm of what is read, before the output projection (EVA-02-CLIP). Default None, none.

    Raises:
        ValueError: If a value is out of range, or ``qk_norm`` names a norm that mixes tokens or depends on position.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        window_size: int | Grid | None = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
        qk_norm: dict | None = None,
        inner_norm: dict | None = None,
        proj_bias: bool = True,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.window_size = None if window_size is None else check_grid('window_size', window_size)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.q_norm, self.k_norm = (
            None
            if qk_norm is None
            else build_single_norm('qk_norm', qk_norm, embed_dims // num_heads)
            for _ in range(2)
        )
        self.norm = None if inner_norm is None else build_token_norm(inner_norm, embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims, bias=proj_bias)
        self.position = position

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, plan: AttentionPlan | None = None
    ) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape."""
        layout = Layout.of(tokens, layout)
        qkv = self.qkv(tokens)
        plan = self.plan_for(layout, layout, plan)
        if self.window_size is None:
            query, key, value = self._place(qkv, plan)
            bias = None if plan is None else plan.bias(layout, layout)
            read = merge_heads(self.read(query, key, value, bias, layout.token_mask()))
        else:
            read = self._read_in_windows(qkv, layout, plan, self.window_size)
        return self.project(read if self.norm is None else self.norm(read, layout))

    def _place(self, qkv: Tensor, plan: AttentionPlan | None) -> tuple[Tensor, ...]:
        """Queries, keys and values ``(B, heads, N, D)`` with their norms and position."""
        query, key, value = self.split_heads(qkv, 3)
        if self.q_norm is not None and self.k_norm is not None:
            query, key = self.q_norm(query), self.k_norm(key)
        return (query, key, value) if plan is None else plan.place(query, key, value)

    def _read_in_windows(
        self, qkv: Tensor, layout: Layout, plan: AttentionPlan | None, window: Grid
    ) -> Tensor:
        """Attend in windows: ``(B, P + H * W, C)`` of queries, keys and values ``(B, P + H * W, 3 * C)``."""
        num_prefix, grid = layout.num_prefix, layout.grid
        heads: tuple[Tensor, ...] = ()
        if num_prefix or self.q_norm is not None or (plan is not None and plan.changes_queries):
            heads = self._place(qkv, plan)
            query, key, value = (
                partition(part[:, :, num_prefix:].transpose(1, 2), grid, window).transpose(1, 2)
                for part in heads
            )
        else:  # one copy instead of three
            query, key, value = self.split_heads(partition(qkv, grid, window), 3)
        mask = layout.mask
        if mask is not None:  # padding of windows takes part, whatever the mask
            mask = ~partition((~mask).unsqueeze(-1), grid, window)[..., 0]
            mask = F.pad(mask, (num_prefix, 0), value=True)
        if num_prefix:
            rows, columns = windows_of(grid, window)
            per_image = rows * columns
            prefix = (part[:, :, :num_prefix] for part in heads[1:])
            shared = (part.repeat_interleave(per_image, dim=0) for part in prefix)
            key, value = (torch.cat(pair, dim=2) for pair in zip(shared, (key, value)))
        cells = Layout(window)
        bias = None if plan is None else plan.bias(cells, cells.with_prefix(num_prefix))
        out = merge(merge_heads(self.read(query, key, value, bias, mask)), grid, window)
        if not num_prefix:
            return out
        bias = None if plan is None else plan.prefix_bias(layout)
        to_all = self.read(
            heads[0][:, :, :num_prefix], heads[1], heads[2], bias, layout.token_mask()
        )
        return layout.join(merge_heads(to_all), out)


@MODELS.register_module()
class DifferentialAttention(Attention):
    """The difference of two softmax maps (Differential Transformer, ICLR 2025, equations 1 to 3)::

        (softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V
        lambda = exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) + lambda_init

    ``Q1`` and ``Q2`` are the halves, ``d`` channels each, of a head's queries; likewise ``K1`` and ``K2``. What a head
    reads passes an RMSNorm and is multiplied by ``1 - lambda_init``, which is ``0.8 - 0.6 exp(-0.3 layer)``.

    Both maps share windows, masks, dropout rate and a position that is added to scores. Parameter names are timm's:
    ``lambda_q1`` to ``lambda_k2``, ``sub_norm``, and those of :class:`Attention`.

    Args:
        embed_dims, qkv_bias, window_size, attn_drop_rate, proj_drop_rate, position, inner_norm, proj_bias: As in
            :class:`Attention`.
        num_heads: Heads of the values, half as many as the paper's baseline has; with an even number of channels each.
        layer: Number of the layer, from 0; in a network, that in its stage, and to be left out. Default 0.

    Raises:
        ValueError: If a value is out of range, or heads have an odd number of channels.
    """

    takes_changed_queries = False  # turns and channels for whole heads would cross the halves
    takes_layer = True
    no_weight_decay: ClassVar[tuple[str, ...]] = (
        'lambda_q1', 'lambda_k1', 'lambda_q2', 'lambda_k2'
    )  # fmt: skip

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        layer: int = 0,
        qkv_bias: bool = True,
        window_size: int | Grid | None = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
        inner_norm: dict | None = None,
        proj_bias: bool = True,
    ) -> None:
        rates = (attn_drop_rate, proj_drop_rate)
        super().__init__(
            embed_dims, num_heads, qkv_bias, window_size, *rates, position, None, inner_norm, proj_bias
        )  # fmt: skip
        check_divisor('twice num_heads', 2 * num_heads, 'embed_dims', embed_dims)
        self.key_dims = embed_dims // num_heads // 2
        for name in self.no_weight_decay:
            self.register_parameter(name, nn.Parameter(torch.empty(self.key_dims)))
        self.sub_norm = TokenRMS(2 * self.key_dims, eps=1e-5)
        depth = check_positive_int('layer', layer, minimum=0)
        self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * depth)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw what makes up ``lambda``, from a normal distribution with standard deviation 0.1."""
        for name in self.no_weight_decay:
            nn.init.normal_(getattr(self, name), std=0.1)

    def read(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """See :meth:`AttentionLayer.read`."""
        half = query.shape[-1] // 2
        first, second = query.split(half, dim=-1)
        # Zeros instead of the other half: kernels without an N x N map want queries as wide as values. On a CPU this
        # takes a third of the time of narrow queries and keys.
        to_first = super().read(F.pad(first, (0, half)), key, value, bias, mask)
        to_second = super().read(F.pad(second, (half, 0)), key, value, bias, mask)
        factors = [
            torch.exp((getattr(self, f'lambda_q{part}') * getattr(self, f'lambda_k{part}')).sum())
            for part in (1, 2)
        ]
        share = factors[0] - factors[1] + self.lambda_init
        return self.sub_norm(to_first - share * to_second) * (1 - self.lambda_init)


def _with_learned_bias(
    query: Tensor, key: Tensor, value: Tensor, bias: Tensor, dropout: float
) -> Tensor:
    """``scaled_dot_product_attention``, which on a CPU takes more passes over the map where the bias has a gradient.

    ``query`` is scaled already, and no row of the bias is all minus infinity.
    """
    scores = (query @ key.transpose(-2, -1)).add_(bias)
    return F.dropout(scores.softmax(dim=-1), dropout) @ value


# Keys that a block of threads of the backward kernels for GPUs holds: 128 in flash attention, 64 or 128 in others.
_KEY_BLOCK = 128


@cache
def _multiprocessors(device: torch.device) -> int:
    """How many blocks of threads run at a time; 1 on anything but a GPU."""
    if device.type != 'cuda':
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count


def _query_parts(query: Tensor, key: Tensor) -> int:
    """Into how many equal parts to cut the queries of an attention with a gradient, so that a GPU is busy.

    The forward kernels run in parallel over queries, the backward kernels over blocks of keys, heads and images only:
    PVT's first stage at 800 x 1216 has 60,800 queries and 950 keys, 8 blocks an image where a GPU runs 132.
    """
    # In a graph, sizes may be symbols, which a choice of parts would make numbers.
    if is_tracing() or type(query) is not Tensor:
        return 1
    images, heads, queries, _ = query.shape
    key_blocks = math.ceil(key.shape[2] / _KEY_BLOCK)
    idle = _multiprocessors(query.device) // max(images * heads * key_blocks, 1)
    # Each part has a gradient of all keys, which should not take more memory than that of its queries.
    most = min(idle, queries // (key_blocks * _KEY_BLOCK))
    return next((parts for parts in range(most, 1, -1) if queries % parts == 0), 1)


def read_in_parts(query: Tensor, key: Tensor, value: Tensor, parts: int, scale: float) -> Tensor:
    """``scaled_dot_product_attention`` with the parts of the queries as images of their own."""
    if parts == 1:
        return F.scaled_dot_product_attention(query, key, value, scale=scale)
    cut = query.unflatten(2, (parts, -1)).transpose(1, 2).flatten(0, 1)
    # Copies: not every kernel takes a batch with a stride of 0.
    key, value = (each.repeat_interleave(parts, dim=0) for each in (key, value))
    out = F.scaled_dot_product_attention(cut, key, value, scale=scale)
    return out.unflatten(0, (len(query), parts)).transpose(1, 2).flatten(2, 3)


def windows_of(grid: Grid, window: Grid) -> Grid:
    """Rows and columns of windows, with those that are padded; in a form that ONNX, which divides towards zero, has."""
    (height, width), (h, w) = grid, window
    return (height + h - 1) // h, (width + w - 1) // w


def partition(tokens: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Cut cells ``(B, H * W, ...)`` into windows ``(B * ceil(H / h) * ceil(W / w), h * w, ...)``, padded with zeros at
    the bottom and right."""
    (height, width), (h, w) = grid, window
    rows, columns = windows_of(grid, window)
    down, across = rows * h - height, columns * w - width
    # Do not branch on symbolic sizes: that would specialise the graph.
    if not (isinstance(down, int) and isinstance(across, int)) or down or across:
        channels = (0, 0) * (tokens.ndim - 2)
        maps = F.pad(tokens.unflatten(1, (height, width)), (*channels, 0, across, 0, down))
        tokens = maps.flatten(1, 2)
    maps = tokens.unflatten(1, (rows, h, columns, w)).transpose(2, 3)
    return maps.reshape(-1, h * w, *tokens.shape[2:])


def merge(windows: Tensor, grid: Grid, window: Grid) -> Tensor:
    """Undo :func:`partition`: back to ``(B, H * W, ...)``, padding cut off."""
    (height, width), (h, w) = grid, window
    rows, columns = windows_of(grid, window)
    rest = windows.shape[2:]
    maps = windows.view(-1, rows, columns, h, w, *rest).transpose(2, 3)
    maps = maps.reshape(-1, rows * h, columns * w, *rest)
    return maps[:, :height, :width].flatten(1, 2)


# Side of the grid that PVTv2's linear attention pools to.
LINEAR_GRID = 7


@MODELS.register_module()
class SpatialReductionAttention(AttentionLayer):
    """Self-attention of all tokens to a reduced grid, through ``scaled_dot_product_attention``.

    Keys and values are read from the grid after a strided convolution and a LayerNorm (PVT, ICCV 2021, eq. 3), or, with
    ``linear=True``, after average pooling to 7 x 7 cells, a 1 x 1 convolution, a LayerNorm and a GELU, so that the
    cost is linear in the number of tokens (PVTv2, CVMJ 2022). Grids that are not a multiple of ``sr_ratio`` are padded
    with zeros at the bottom and right: no cell is left out.

    Parameter names are the published ones: ``q``, ``kv``, ``proj``, ``sr``, ``norm``.

    Args:
        embed_dims, num_heads, attn_drop_rate, proj_drop_rate, position: As in :class:`AttentionLayer`.
        sr_ratio: Cells per reduced cell and axis; 1 (default) for no reduction. It plays no part if ``linear``.
        linear: Pool to 7 x 7 cells whatever the grid. Default False.
        qkv_bias: Bias on queries, keys and values. Default True.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        sr_ratio: int = 1,
        linear: bool = False,
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.sr_ratio = check_positive_int('sr_ratio', sr_ratio)
        self.linear = linear
        self.q = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.kv = nn.Linear(embed_dims, 2 * embed_dims, bias=qkv_bias)
        self.reduces = self.linear or self.sr_ratio > 1
        self.takes_prefix = not self.reduces  # prefix tokens have no place on the grid
        if self.reduces:
            kernel = 1 if self.linear else self.sr_ratio
            self.sr = PatchConv2d(embed_dims, embed_dims, kernel)
            self.norm = nn.LayerNorm(embed_dims)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.position = position

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, plan: AttentionPlan | None = None
    ) -> Tensor:
        """Attend; ``(B, H * W, C)`` to the same shape.

        Without reduction there may be prefix tokens, ``(B, P + H * W, C)``; they attend and are attended to.

        Raises:
            ValueError: With reduction, if there are prefix tokens or a mask.
        """
        layout = Layout.of(tokens, layout)
        tokens = tokens if self.linear else cast_once(tokens)  # a mean would be of rounded values
        source, keys = self._reduce(tokens, layout) if self.reduces else (tokens, layout)
        (query,) = self.split_heads(self.q(tokens), 1)
        key, value = self.split_heads(self.kv(source), 2)
        plan, bias = self.plan_for(layout, keys, plan), None
        if plan is not None:
            query, key, value = plan.place(query, key, value)
            bias = plan.bias(layout, keys)
        read = self.read(query, key, value, bias, keys.token_mask())
        return self.project(merge_heads(read))

    def _reduce(self, tokens: Tensor, layout: Layout) -> tuple[Tensor, Layout]:
        """``(B, H * W, C)`` to the tokens of the reduced grid, and their layout."""
        if layout.num_prefix or layout.mask is not None:
            raise ValueError(
                f'spatial reduction takes no prefix tokens and no mask, got {layout.num_prefix} prefix tokens'
                f'{"" if layout.mask is None else " and a mask"}'
            )
        maps = layout.to_maps(tokens)
        if self.linear:
            maps = F.adaptive_avg_pool2d(maps, LINEAR_GRID)
        else:
            maps = pad_to_multiple(maps, (self.sr_ratio, self.sr_ratio))
        maps = self.sr(maps)
        reduced = self.norm(maps.flatten(2).transpose(1, 2))
        keys = Layout((maps.shape[2], maps.shape[3]))
        return (F.gelu(reduced) if self.linear else reduced), keys
