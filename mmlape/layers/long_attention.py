"""Attention for long sequences: BigBird and Reformer."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout, cached
from mmlape.registry import MODELS
from mmlape.runtime.autocast import without_autocast

from .attention import AttentionLayer, merge_heads


@MODELS.register_module()
class BigBirdAttention(AttentionLayer):
    """Sparse self-attention of blocks of tokens (BigBird, NeurIPS 2020, section 2), linear in their number.

    The tokens, prefix tokens first, are cut into blocks. A query block reads from the ``window`` blocks around it, from
    the first and the last block (global blocks, which read from all tokens themselves), and from ``num_random`` others,
    another choice for every head. Where there are no more blocks than that, this is full attention.

    The last block is the last one with tokens that are not padding, and random blocks are drawn by the places of both
    blocks alone, among those with tokens: padding at the end changes nothing.

    Parameter names are those of :class:`~mmlape.layers.Attention`.

    Args:
        embed_dims, num_heads, attn_drop_rate, proj_drop_rate: As in :class:`AttentionLayer`.
        block_size: Tokens of a block. Default 64.
        window: Blocks of a window, an odd number. Default 3.
        num_random: Random blocks. Default 3.
        seed: Of the random blocks; published: the number of the layer. Default 0.
        qkv_bias: Bias on the query, key and value projection. Default True.
        proj_bias: Bias on the output projection. Default True.

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
        proj_bias: bool = True,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.block_size = check_positive_int('block_size', block_size)
        self.window = check_positive_int('window', window)
        if window % 2 == 0:
            raise ValueError(
                f'window must be odd (a block is in the middle of its own), got {window}'
            )
        self.num_random = check_positive_int('num_random', num_random, minimum=0)
        self.seed = check_positive_int('seed', seed, minimum=0)
        self.qkv = nn.Linear(embed_dims, 3 * embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims, bias=proj_bias)

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape."""
        layout = Layout.of(tokens, layout)
        present = padded_mask(tokens, layout, self.block_size)
        extra = present.shape[1] - tokens.shape[1]
        query, key, value = (
            F.pad(part, (0, 0, 0, extra)) for part in self.split_heads(self.qkv(tokens), 3)
        )
        shape = (-1, self.block_size)
        blocks, keys, values = (part.unflatten(2, shape) for part in (query, key, value))
        filled = present.unflatten(1, shape)
        number, counts, last = self.key_blocks(filled.any(dim=-1))
        index = number.flatten(2)[..., None]
        # The K * S keys of every query block, which are as images of a batch.
        keys, values = (
            _take(part, index[..., None], dim=2).view(*number.shape, *part.shape[3:])
            for part in (keys, values)
        )
        keys, values = (part.flatten(3, 4).flatten(0, 2)[:, None] for part in (keys, values))
        filled = _take(filled[:, None], index, dim=2) & counts.flatten(2)[..., None]
        mask = filled.view(keys.shape[0], -1)
        out = self.read(blocks.flatten(0, 2)[:, None], keys, values, mask=mask).view(blocks.shape)
        # The first and the last block read from all tokens.
        ends = torch.stack([torch.zeros_like(last), last], dim=1)[:, None, :, None, None]
        query = _take(blocks, ends, dim=2)
        read = self.read(query.flatten(2, 3), key, value, mask=present).view(query.shape)
        blocks_here = torch.arange(blocks.shape[2], device=last.device)[:, None, None]
        for end in (0, 1):
            out = torch.where(blocks_here == ends[:, :, end, None], read[:, :, end, None], out)
        return self.project(merge_heads(out.flatten(2, 3)[:, :, : tokens.shape[1]]))

    def key_blocks(self, has_tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The key blocks of every query block, from which blocks have tokens, ``(B, M)``.

        Returns:
            Their numbers, ``(B, G, M, K)``, some of them twice; where it is the first time and there are tokens,
            ``(B, G, M, K)``; and the number of the last block with tokens, ``(B,)``.
        """
        (batch, count), device = has_tokens.shape, has_tokens.device
        number = torch.arange(count, device=device)
        last = (number * has_tokens).amax(dim=1)
        ends = last[:, None, None]
        near = (number[:, None] - number).abs() <= self.window // 2
        inner = (number > 0) & (number < ends)  # (B, 1, M)
        order = _random_order(self.num_heads, count, self.seed, device)
        order = torch.where((inner & ~near)[:, None], order, -1.0)
        ranked = order.topk(min(self.num_random, count), dim=-1)
        window = number[:, None] + torch.arange(self.window, device=device) - self.window // 2
        parts = [
            (last.new_zeros(1), has_tokens.new_ones(1)),
            (ends[:, None], (ends > 0)[:, None]),
            (window.clamp(0, count - 1), ((window > 0) & (window < ends))[:, None]),
            (ranked.indices, ranked.values >= 0),
        ]
        shape = (batch, self.num_heads, count, -1)
        numbers, counts = (
            torch.cat([part.expand(shape) for part in kind], dim=-1) for kind in zip(*parts)
        )
        return numbers, counts, last


def _take(values: Tensor, index: Tensor, dim: int) -> Tensor:
    """``torch.take_along_dim``, whose own broadcasting fixes the batch of an exported graph."""
    sizes = [
        index_size if size == 1 else size for size, index_size in zip(values.shape, index.shape)
    ]
    before, after = sizes[:dim], sizes[dim + 1 :]
    values = values.expand(*before, values.shape[dim], *after)
    return values.gather(dim, index.expand(*before, index.shape[dim], *after))


def padded_mask(tokens: Tensor, layout: Layout, multiple: int) -> Tensor:
    """``(B, N')``: True for tokens that are there, N' the next multiple of ``multiple``."""
    mask = layout.token_mask()
    if mask is None:
        mask = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
    return F.pad(mask, (0, -tokens.shape[1] % multiple), value=False)


@cached
def _random_order(heads: int, count: int, seed: int, device: torch.device) -> Tensor:
    """A query block takes the key blocks with the largest of these numbers, ``(heads, count, count)``: a hash of seed,
    head and both blocks, whatever ``count`` is."""
    numbers = [torch.arange(size, dtype=torch.int64) for size in (heads, count, count)]
    mixed = torch.tensor(seed, dtype=torch.int64)
    for axis, number in enumerate(numbers):
        mixed = _mixed(mixed.unsqueeze(-1) * 1_000_003 + number + axis)
    return (mixed.double() / _MODULUS).float().to(device)


# A prime below 2**31: products of two such numbers fit into 64 bits.
_MODULUS = 2_147_483_647


def _mixed(value: Tensor) -> Tensor:
    """Three rounds of multiplying and folding, which send neighbours far apart."""
    for factor in (48_271, 1_566_083_941, 1_043_618_065):
        value = value.remainder(_MODULUS) * factor % _MODULUS
        value = value ^ (value >> 15)
    return value


# Added to scores: a token reads from itself where there is nobody else, from padding never.
ITSELF, ABSENT = -1e5, -1e9


@MODELS.register_module()
class LSHAttention(AttentionLayer):
    """Self-attention by locality-sensitive hashing, with one projection for queries and keys (Reformer, ICLR 2020,
    section 2).

    In every round, tokens are sorted by the bucket of their query, the nearest of random directions, and within it by
    place; then they are cut into chunks, and a token reads from its chunk and the one before (before the first comes
    the last). Keys have length 1, and a token reads from itself only if there is no other. What rounds read is weighed
    by how much each of them found, the normalisers of their softmax.

    Padding is sorted behind all tokens and not read: it changes nothing.

    The cost is linear in tokens but for the sorting. Blocks with such a layer are recomputed in the backward pass with
    ``with_cp=True`` of the network, which bounds memory as the paper's reversible layers do, whatever the block.

    Args:
        embed_dims, num_heads, attn_drop_rate, proj_drop_rate: As in :class:`AttentionLayer`.
        chunk_size: Tokens of a chunk. Default 64.
        num_buckets: Buckets, an even number. Default 32.
        num_rounds: Rounds of hashing. Default 1.
        qkv_bias: Bias on queries (which are the keys) and on values. Default True.
        proj_bias: Bias on the output projection. Default True.

    Shape:
        ``rotations``: ``(G, D, R, num_buckets / 2)``, the random directions; a buffer, drawn once: the same network
        gives the same output. (The paper draws new ones in every pass.)

    Raises:
        ValueError: If a value is out of range, ``num_buckets`` is odd, or ``num_heads`` does not divide ``embed_dims``.
    """

    takes_position = False
    rotations: Tensor

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        chunk_size: int = 64,
        num_buckets: int = 32,
        num_rounds: int = 1,
        qkv_bias: bool = True,
        attn_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        proj_bias: bool = True,
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate)
        self.chunk_size = check_positive_int('chunk_size', chunk_size)
        self.num_buckets = check_positive_int('num_buckets', num_buckets, minimum=2)
        if num_buckets % 2:
            raise ValueError(
                f'num_buckets must be even (a direction and its opposite), got {num_buckets}'
            )
        check_positive_int('num_rounds', num_rounds)
        self.qk = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.v = nn.Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.proj = nn.Linear(embed_dims, embed_dims, bias=proj_bias)
        shape = (num_heads, embed_dims // num_heads, num_rounds, num_buckets // 2)
        self.register_buffer('rotations', torch.randn(shape))

    def forward(self, tokens: Tensor, layout: Layout | Grid) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape."""
        present = padded_mask(tokens, Layout.of(tokens, layout), self.chunk_size)
        extra = present.shape[1] - tokens.shape[1]
        query, value = (
            F.pad(self.split_heads(layer(tokens), 1)[0], (0, 0, 0, extra))
            for layer in (self.qk, self.v)
        )
        with torch.no_grad():
            order = self.buckets(query, present).argsort(dim=-1, stable=True)
        out, weight = self._read_sorted(query, value, present, order)
        back = order.argsort(dim=-1)
        out = _take(out.flatten(3, 4), back[..., None], dim=3)
        share = weight.flatten(3, 4).gather(3, back).softmax(dim=2).to(out.dtype)
        out = (out * share[..., None]).sum(dim=2)[:, :, : tokens.shape[1]]
        return self.project(merge_heads(out).to(tokens.dtype))

    def buckets(self, query: Tensor, present: Tensor) -> Tensor:
        """The bucket of every token in every round, ``(B, G, R, N)``, of queries ``(B, G, N, D)``; ``num_buckets`` for
        padding, where ``present`` ``(B, N)`` is False."""
        with without_autocast(query.device):
            turned = torch.einsum('bgnd,gdrk->bgrnk', query.float(), self.rotations.float())
            found = torch.cat([turned, -turned], dim=-1).argmax(dim=-1)
        return found.masked_fill(~present[:, None, None], self.num_buckets)

    def _read_sorted(
        self, query: Tensor, value: Tensor, present: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Attend among tokens in the given order: return what they read, ``(B, G, R, M, S, D)``, and the logarithm of
        their softmax's normaliser, ``(B, G, R, M, S)``."""
        key = F.normalize(query.float(), dim=-1).to(query.dtype)
        shape = (-1, self.chunk_size)
        query, key, value = (
            _take(part[:, :, None], order[..., None], dim=3).unflatten(3, shape)
            for part in (query, key, value)
        )
        filled = _take(present[:, None, None], order, dim=3).unflatten(3, shape)
        place = order.unflatten(3, shape)
        last = filled.any(dim=-1).sum(dim=-1, keepdim=True).sub(1).clamp(min=0)
        key, value, before, seen = (
            _with_one_before(part, last) for part in (key, value, place, filled)
        )
        scores = (query @ key.transpose(-1, -2)).float()
        scores = scores.masked_fill(~seen[..., None, :], ABSENT)
        scores = scores.masked_fill(place[..., None] == before[..., None, :], ITSELF)
        weight = scores.logsumexp(dim=-1)
        shares = F.dropout(scores.softmax(dim=-1), self.attn_drop_rate, self.training)
        return shares.to(value.dtype) @ value, weight


def _with_one_before(chunks: Tensor, last: Tensor) -> Tensor:
    """``(B, G, R, M, S, ...)`` as ``(B, G, R, M, 2 S, ...)``: every chunk and the one before; ``last`` ``(B, G, R, 1)``
    comes before the first."""
    index = last.view(*last.shape, *[1] * (chunks.ndim - 4))
    end = _take(chunks, index, dim=3)
    return torch.cat([chunks, torch.cat([end, chunks[:, :, :, :-1]], dim=3)], dim=4)
