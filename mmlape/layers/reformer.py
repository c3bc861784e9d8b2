"""Attention among tokens that a hash finds alike (Reformer).

B batch, G heads, R rounds of hashing, N tokens in M chunks of S, D channels per head
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.autocast import without_autocast
from mmlape.checks import check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.position import InsidePlan
from mmlape.registry import MODELS

from .attention import AttentionLayer
from .bigbird import padded_mask, refuse_position
from .linear import Linear

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
        embed_dims: Channels ``C``.
        num_heads: Heads; must divide ``embed_dims``.
        chunk_size: Tokens of a chunk. Default 64.
        num_buckets: Buckets, an even number. Default 32.
        num_rounds: Rounds of hashing. Default 1.
        qkv_bias: Bias on both projections. Default True.
        attn_drop_rate: Dropout of attention weights. Default 0.
        proj_drop_rate: Dropout after the output projection. Default 0.

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
    ) -> None:
        super().__init__(embed_dims, num_heads, attn_drop_rate, proj_drop_rate, None)
        self.chunk_size = check_positive_int('chunk_size', chunk_size)
        self.num_buckets = check_positive_int('num_buckets', num_buckets, minimum=2)
        if num_buckets % 2:
            raise ValueError(
                f'num_buckets must be even (a direction and its opposite), got {num_buckets}'
            )
        check_positive_int('num_rounds', num_rounds)
        self.qk = Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.v = Linear(embed_dims, embed_dims, bias=qkv_bias)
        self.proj = Linear(embed_dims, embed_dims)
        shape = (num_heads, embed_dims // num_heads, num_rounds, num_buckets // 2)
        self.register_buffer('rotations', torch.randn(shape))

    def forward(
        self, tokens: Tensor, layout: Layout | Grid, inside: InsidePlan | None = None
    ) -> Tensor:
        """Attend; ``(B, P + H * W, C)`` to the same shape.

        Raises:
            ValueError: If there is a position inside the attention.
        """
        refuse_position(self, inside)
        present = padded_mask(tokens, Layout.of(tokens, layout), self.chunk_size)
        extra = present.shape[1] - tokens.shape[1]
        (query,) = self.split_heads(self.qk(tokens), 1)
        (value,) = self.split_heads(self.v(tokens), 1)
        query, value = (F.pad(part, (0, 0, 0, extra)) for part in (query, value))
        with torch.no_grad():
            order = self.buckets(query, present).argsort(dim=-1, stable=True)
        out, weight = self._read_sorted(query, value, present, order)
        back = order.argsort(dim=-1)
        out = _take(out.flatten(3, 4), back)
        share = weight.flatten(3, 4).gather(3, back).softmax(dim=2).to(out.dtype)
        out = (out * share[..., None]).sum(dim=2)[:, :, : tokens.shape[1]]
        return self.project(out.transpose(1, 2).flatten(2).to(tokens.dtype))

    def buckets(self, query: Tensor, present: Tensor) -> Tensor:
        """The bucket of every token in every round, ``(B, G, R, N)``; ``num_buckets`` for padding.

        Args:
            query: ``(B, G, N, D)``.
            present: ``(B, N)``, False for padding.
        """
        with without_autocast(query.device):
            turned = torch.einsum('bgnd,gdrk->bgrnk', query.float(), self.rotations.float())
            found = torch.cat([turned, -turned], dim=-1).argmax(dim=-1)
        return found.masked_fill(~present[:, None, None], self.num_buckets)

    def _read_sorted(
        self, query: Tensor, value: Tensor, present: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """What tokens in the given order read, ``(B, G, R, M, S, D)``, and the logarithm of their softmax's normaliser,
        ``(B, G, R, M, S)``."""
        rounds = order.shape[2]
        key = F.normalize(query.float(), dim=-1).to(query.dtype)
        there = present[:, None, None].expand(order.shape).gather(3, order)
        query, key, value = (
            self._chunks(_take(part[:, :, None].expand(-1, -1, rounds, -1, -1), order))
            for part in (query, key, value)
        )
        place, there = self._chunks(order), self._chunks(there)
        last = there.any(dim=-1).sum(dim=-1, keepdim=True).sub(1).clamp(min=0)
        key, value, before, seen = (
            _with_one_before(part, last) for part in (key, value, place, there)
        )
        scores = (query @ key.transpose(-1, -2)).float()
        scores = scores.masked_fill(~seen[..., None, :], ABSENT)
        scores = scores.masked_fill(place[..., None] == before[..., None, :], ITSELF)
        weight = scores.logsumexp(dim=-1)
        shares = F.dropout(scores.softmax(dim=-1), self.attn_drop_rate, self.training)
        return shares.to(value.dtype) @ value, weight

    def _chunks(self, tokens: Tensor) -> Tensor:
        """``(B, G, R, N, ...)`` as ``(B, G, R, M, S, ...)``."""
        return tokens.unflatten(3, (-1, self.chunk_size))


def _take(tokens: Tensor, order: Tensor) -> Tensor:
    """``(B, G, R, N, D)`` in the order ``(B, G, R, N)``."""
    return tokens.gather(3, order[..., None].expand(-1, -1, -1, -1, tokens.shape[-1]))


def _with_one_before(chunks: Tensor, last: Tensor) -> Tensor:
    """``(B, G, R, M, S, ...)`` as ``(B, G, R, M, 2 S, ...)``: every chunk and the one before; ``last`` ``(B, G, R, 1)``
    comes before the first."""
    index = last.view(*last.shape, *[1] * (chunks.ndim - 4))
    end = chunks.gather(3, index.expand(-1, -1, -1, -1, *chunks.shape[4:]))
    return torch.cat([chunks, torch.cat([end, chunks[:, :, :, :-1]], dim=3)], dim=4)
