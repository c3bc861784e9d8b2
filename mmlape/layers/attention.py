"""Multi-head self-attention over all tokens or within windows of the grid."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_grid, check_positive_int, check_rate
from mmlape.position import AttentionPosition


class Attention(nn.Module):
    """Self-attention through ``scaled_dot_product_attention``; no N x N map is held.

    With a ``window_size``, the grid is cut into windows and patch tokens attend within their window. Where the grid is
    no multiple of the window, queries, keys and values are padded with zeros at the bottom and right *after* their
    projection, so that padded keys take part in the softmax: this is what published ViT-Adapter detection weights
    were trained with. Prefix tokens are seen by every window and attend to all tokens.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        qkv_bias: Bias on the query, key and value projection. Default True.
        window_size: Window height and width in tokens, one integer or a pair; None (default) for global attention.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.
        position: What a position does to queries, keys, values and scores, per window or for the image (see
            :class:`~mmlape.position.AttentionPosition`). Default None, nothing.

    Raises:
        ValueError: If ``num_heads`` does not divide ``embed_dims``, or a size or rate is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        qkv_bias: bool = True,
        window_size: int | tuple[int, int] | None = None,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        position: AttentionPosition | None = None,
    ) -> None:
        super().__init__()
        check_positive_int('embed_dims', embed_dims)
        self.num_heads = check_positive_int('num_heads', num_heads)
        if embed_dims % num_heads:
            raise ValueError(
                f'num_heads must divide embed_dims, got num_heads={num_heads}, embed_dims={embed_dims}'
            )
        self.window_size = None if window_size is None else check_grid('window_size', window_size)
        self.attn_drop_rate = check_rate('attn_drop_rate', attn_drop_rate)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims)
        self.position = position
        self.proj_drop = nn.Dropout(check_rate('proj_drop_rate', proj_drop_rate))

    def forward(self, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape, ``grid = (H, W)``."""
        qkv = self.qkv(tokens)
        if self.position is not None and not self.position.per_window:
            placed = self.position(*self._split_heads(qkv), grid)[:3]
            qkv = torch.cat([part.transpose(1, 2).flatten(2) for part in placed], dim=-1)
        if self.window_size is None:
            out = self._attend(*self._split_heads(qkv), grid)
        else:
            out = self._attend_in_windows(qkv, grid, self.window_size)
        return self.proj_drop(self.proj(out))

    def _split_heads(self, qkv: Tensor) -> tuple[Tensor, ...]:
        """``(B, N, heads * (2 * D + d))`` to queries and keys ``(B, heads, N, D)`` and values ``(B, heads, N, d)``.

        D is d unless a position has widened queries and keys.
        """
        value = self.proj.in_features
        key = (qkv.shape[-1] - value) // 2
        return tuple(
            part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for part in qkv.split([key, key, value], dim=-1)
        )

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, grid: tuple[int, int] | None = None
    ) -> Tensor:
        """Heads apart in, ``(B, N, C)`` out. Position acts on a ``grid`` of queries and keys."""
        # Of the content alone: position channels must not change what a trained head's own scores are.
        width = value.shape[-1]
        scale, bias = width**-0.5, None
        if self.position is not None and self.position.per_window and grid is not None:
            query, key, value, bias = self.position(query, key, value, grid)
        # Kernels without an N x N map want values as wide as queries.
        value = F.pad(value, (0, query.shape[-1] - width)) if query.shape[-1] > width else value
        dropout = self.attn_drop_rate if self.training else 0.0
        out = F.scaled_dot_product_attention(query, key, value, bias, dropout, scale=scale)
        return out[..., :width].transpose(1, 2).flatten(2)

    def _attend_in_windows(
        self, qkv: Tensor, grid: tuple[int, int], window: tuple[int, int]
    ) -> Tensor:
        batch, num_tokens, _ = qkv.shape
        num_prefix = num_tokens - grid[0] * grid[1]
        prefix, cells = qkv[:, :num_prefix], qkv[:, num_prefix:]
        windows = partition(cells, grid, window)
        query, key, value = self._split_heads(windows)
        if not num_prefix:
            return merge(self._attend(query, key, value, window), grid, window)
        per_image = windows.shape[0] // batch
        shared = prefix.repeat_interleave(per_image, dim=0)
        _, prefix_key, prefix_value = self._split_heads(shared)
        out = self._attend(
            query,
            torch.cat([prefix_key, key], dim=2),
            torch.cat([prefix_value, value], dim=2),
            window,
        )
        all_query, all_key, all_value = self._split_heads(qkv)
        prefix_out = self._attend(all_query[:, :, :num_prefix], all_key, all_value)
        return torch.cat([prefix_out, merge(out, grid, window)], dim=1)


def partition(tokens: Tensor, grid: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """Cut a grid into windows, padding with zeros at the bottom and right.

    Args:
        tokens: ``(B, H * W, C)``.
        grid: ``(H, W)``.
        window: ``(h, w)``.

    Returns:
        ``(B * ceil(H / h) * ceil(W / w), h * w, C)``.
    """
    (height, width), (h, w) = grid, window
    maps = tokens.unflatten(1, (height, width))
    maps = F.pad(maps, (0, 0, 0, -width % w, 0, -height % h))
    maps = maps.unflatten(2, (-1, w)).unflatten(1, (-1, h))
    return maps.transpose(2, 3).flatten(3, 4).flatten(0, 2)


def merge(windows: Tensor, grid: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """Undo :func:`partition`: back to ``(B, H * W, C)``, padding cut off."""
    (height, width), (h, w) = grid, window
    rows, columns = -(-height // h), -(-width // w)
    maps = windows.unflatten(1, (h, w)).unflatten(0, (-1, rows, columns)).transpose(2, 3)
    maps = maps.flatten(3, 4).flatten(1, 2)
    return maps[:, :height, :width].flatten(1, 2)
