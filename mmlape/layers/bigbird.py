"""Attention within blocks of a sequence: to neighbours, to a few random blocks, and to global ones (BigBird).

B batch, G heads, N tokens in M blocks of S tokens, K key blocks of a query block, D channels per head
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.kept import kept
from mmlape.layout import Grid, Layout
from mmlape.position import InsidePlan
from mmlape.registry import MODELS

from .attention import AttentionLayer
from .linear import Linear


class KeyBlocks(NamedTuple):
    """The key blocks of every query block.

    Attributes:
        number: ``(B, G, M, K)``; some of them may be there twice.
        counts: ``(B, G, M, K)``, True where it is the first time and there are tokens.
        last: ``(B,)``, the last block with tokens.
    """

    number: Tensor
    counts: Tensor
    last: Tensor


@MODELS.register_module()
class BigBirdAttention(AttentionLayer):
    """Sparse self-attention of blocks of tokens (BigBird, NeurIPS 2020, section 2), linear in their number.

    The tokens, prefix tokens first, are cut into blocks. A query block reads from the ``window`` blocks around it, from
    the first and the last block (global blocks, which read from all tokens themselves), and from ``num_random`` others,
    another choice for every head. Where there are no more blocks than that, this is full attention.

    The last block is the last one with tokens that are no padding, and random blocks are drawn by the places of both
    blocks alone, among those with tokens: padding at the end changes nothing.

    Parameter names are those of :class:`~mmlape.layers.Attention`.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        block_size: Tokens of a block. Default 64.
        window: Blocks of a window, an odd number. Default 3.
        num_random: Random blocks. Default 3.
        seed: Of the random blocks; published: the number of the layer. Default 0.
        qkv_bias: Bias on the query, key and value projection. Default True.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.

    Raises:
        ValueError: If a value is out of range, ``window`` is even, or ``num_heads`` does not divide ``embed_dims``.
    """

    takes_position = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        block_size: int = 64,
        window: int = 3,
        num_random: int = 3,
        seed: int = 0,
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate, None)
        self.block_size = check_positive_int('block_size', block_size)
        self.window = check_positive_int('window', window)
        if window % 2 == 0:
            raise ValueError(
                f'window must be odd (a block is in the middle of its own), got {window}'
            )
        self.num_random = check_positive_int('num_random', num_random, minimum=0)
        self.seed = check_positive_int('seed', seed, minimum=0)
        self.qkv = Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, inside: InsidePlan | None = None
    ) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape.

        Raises:
            ValueError: If there is a position inside the attention.
        """
        refuse_position(self, inside)
        layout = Layout.of(tokens, layout)
        present = padded_mask(tokens, layout, self.block_size)
        extra = present.shape[1] - tokens.shape[1]
        query, key, value = (
            F.pad(part, (0, 0, 0, extra)) for part in self.split_heads(self.qkv(tokens), 3)
        )
        out = self._attend_to_blocks(query, key, value, present)[:, :, : tokens.shape[1]]
        return self.project(out.transpose(1, 2).flatten(2))

    def _attend_to_blocks(
        self, query: Tensor, key: Tensor, value: Tensor, present: Tensor
    ) -> Tensor:
        """``(B, G, M * S, D)`` each, and ``(B, M * S)``, to ``(B, G, M * S, D)``."""
        shape = (-1, self.block_size)
        blocks = query.unflatten(2, shape)
        chosen = self.key_blocks(present.unflatten(1, shape).any(dim=-1))
        index = chosen.number.flatten(2)
        keys, values = (_gather(part.unflatten(2, shape), index) for part in (key, value))
        # K * S of every query block, which are as rows of a batch
        keys, values = (
            part.unflatten(2, chosen.number.shape[2:]).flatten(3, 4).flatten(1, 2)
            for part in (keys, values)
        )
        there = present.unflatten(1, shape)[:, None].expand(-1, self.num_heads, -1, -1)
        there = there.gather(2, index[..., None].expand(-1, -1, -1, self.block_size))
        there = there.unflatten(2, chosen.number.shape[2:]) & chosen.counts[..., None]
        bias = hiding(there.flatten(3).flatten(1, 2), query.dtype)[:, :, None]
        bias = bias.expand(-1, -1, self.block_size, -1)
        out = self.read(blocks.flatten(1, 2), keys, values, bias).view(blocks.shape)
        return self._with_global_blocks(out, blocks, key, value, present, chosen.last).flatten(2, 3)

    def _with_global_blocks(
        self,
        out: Tensor,
        blocks: Tensor,
        key: Tensor,
        value: Tensor,
        present: Tensor,
        last: Tensor,
    ) -> Tensor:
        """``out`` ``(B, G, M, S, D)`` with what the first and the last block read of all tokens."""
        ends = torch.stack([torch.zeros_like(last), last], dim=1)
        index = ends[:, None].expand(-1, self.num_heads, -1)
        query = _gather(blocks, index)
        read = self.read(query.flatten(2, 3), key, value, mask=present).view(query.shape)
        number = torch.arange(blocks.shape[2], device=last.device)
        for end in (0, 1):
            here = (number == ends[:, end, None])[:, None, :, None, None]
            out = torch.where(here, read[:, :, end, None], out)
        return out

    def key_blocks(self, has_tokens: Tensor) -> KeyBlocks:
        """Those of every query block, for ``has_tokens`` ``(B, M)``."""
        count, device = has_tokens.shape[1], has_tokens.device
        number = torch.arange(count, device=device)
        last = (number * has_tokens).amax(dim=1)
        ends = last[:, None, None]
        near = (number[:, None] - number).abs() <= self.window // 2
        inner = (number > 0) & (number < ends)  # (B, 1, M)
        order = self.random_order(count, device)
        order = torch.where((inner & ~near)[:, None], order, -1.0)
        ranked = order.topk(min(self.num_random, count), dim=-1)
        steps = torch.arange(self.window, device=device) - self.window // 2
        window = number[:, None] + steps
        in_window = ((window > 0) & (window < ends))[:, None]
        batch, heads = has_tokens.shape[0], self.num_heads
        first = last.new_zeros(batch, heads, count, 1)
        shape = (batch, heads, count, -1)
        index = [
            first,
            ends[:, None].expand_as(first),
            window.clamp(0, count - 1).expand(shape),
            ranked.indices.expand(shape),
        ]
        counts = [
            torch.ones_like(first, dtype=torch.bool),
            (ends > 0)[:, None].expand_as(first),
            in_window.expand(shape),
            (ranked.values >= 0).expand(shape),
        ]
        return KeyBlocks(torch.cat(index, dim=-1), torch.cat(counts, dim=-1), last)

    def random_order(self, count: int, device: torch.device) -> Tensor:
        """``(G, M, M)``: a query block takes the key blocks with the largest numbers, of those that it may take."""
        return _random_order(self.num_heads, count, self.seed, device)


def refuse_position(layer: nn.Module, inside: InsidePlan | None) -> None:
    """Raise ValueError if there is a position inside the attention, for which a layer has no use."""
    if inside is not None:
        raise ValueError(
            f'{type(layer).__name__} takes no position inside the attention, got '
            f'{type(inside.position).__name__}: set attention_position=None'
        )


def padded_mask(tokens: Tensor, layout: Layout, multiple: int) -> Tensor:
    """``(B, N')``: True for tokens that are there, N' the next multiple of ``multiple``."""
    mask = layout.token_mask()
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return F.pad(mask, (0, -tokens.shape[1] % multiple), value=False)


def hiding(there: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to scores: 0 where True, else so little that nothing is read. It is finite, so that a query without
    any key has a mean of all, not NaN."""
    return torch.zeros_like(there, dtype=dtype).masked_fill(~there, torch.finfo(dtype).min / 2)


def _gather(blocks: Tensor, index: Tensor) -> Tensor:
    """Blocks ``(B, G, M, S, D)`` at ``(B, G, K)``: ``(B, G, K, S, D)``."""
    flat = blocks.flatten(3)
    found = flat.gather(2, index[..., None].expand(-1, -1, -1, flat.shape[-1]))
    return found.unflatten(3, blocks.shape[3:])


@kept
def _random_order(heads: int, count: int, seed: int, device: torch.device) -> Tensor:
    """Numbers from 0, ``(heads, count, count)``: a hash of seed, head and both blocks, whatever ``count`` is."""
    places = [torch.arange(size, dtype=torch.int64) for size in (heads, count, count)]
    mixed = torch.tensor(seed, dtype=torch.int64)
    for axis, place in enumerate(places):
        mixed = _mixed(mixed.unsqueeze(-1) * 1_000_003 + place + axis)
    return (mixed.double() / _MODULUS).float().to(device)


# A prime below 2**31: products of two such numbers fit into 64 bits.
_MODULUS = 2_147_483_647


def _mixed(value: Tensor) -> Tensor:
    """Three rounds of multiplying and folding, which send neighbours far apart."""
    for factor in (48_271, 1_566_083_941, 1_043_618_065):
        value = value.remainder(_MODULUS) * factor % _MODULUS
        value = value ^ (value >> 15)
    return value
