"""Position channels beside the queries and keys of an attention layer, edge markers in its values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from mmlape.checks import check_option, check_positive_int
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from ..embeddings.base import PositionEmbedding
from ..embeddings.gabor import GaborPosition
from ..embeddings.learned import LearnedPosition
from .base import AttentionPosition

PARTS = ('4', '2,3', '2,3,4')
VARIANTS = ('G+E', 'G', 'E', 'LE')


class PlacedChannels(NamedTuple):
    """What a layer's tokens receive at one grid, ``(1, heads, P + H * W, channels)`` each, or None for nothing.

    Attributes:
        added_to_query: Added to a copy of the queries (part 2).
        beside_query, beside_key: Concatenated (part 4).
        against_query: Concatenated to the keys, against the plain queries (part 3).
        added_to_value: Added to the values.
    """

    added_to_query: Tensor | None = None
    against_query: Tensor | None = None
    beside_query: Tensor | None = None
    beside_key: Tensor | None = None
    added_to_value: Tensor | None = None


@MODELS.register_module()
class GaborAttention(AttentionPosition):
    r"""Position of its own for the queries, keys and values of one layer (Gabor position encoding, section 4).

    The score of two tokens with absolute position has four parts (eq. 3): content against content (1), position against
    content (2), content against position (3), position against position (4). Here they are chosen. With part 4 (eq. 13)
    queries and keys are widened by position channels; with parts 2 and 3 position has the width of a head and
    meets the other side's content. Values get edge markers (Table 4):

    .. math:: A = \mathrm{softmax}\Bigl(\frac{q k^T + [pos_q k^T + q\,pos_k^T]_{2,3} + [pos_q pos_k^T]_4}
        {\sqrt{d}}\Bigr) (v + E W_E + B), \qquad d = C / \mathrm{heads}

    d is the width of the head's *content*, not of the widened head. The paper adds position to networks that were
    trained without (section 4.3); the widened head's factor would shrink their own scores, while the position's share
    has learned weights, which take up any factor. All of it is a sum of products of queries and keys, so it goes
    through ``scaled_dot_product_attention``, and no N x N map is made.

    Positions are those of the image: (-1, -1) is the image's first patch, edges are the image's. This holds in a layer
    with windows too: its scores are those of global attention, restricted to the window. What a window is padded with
    has no position. Any grid is served; ``'LE'`` is resized, the others are not.

    Args:
        embed_dims: Channels ``C``.
        num_heads: Heads of the attention.
        grid: Pre-training grid ``(H0, W0)`` of the image in tokens.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Accepted for uniformity; positions are the image's.
        parts: Parts of the score: ``'4'`` (default; the paper's best), ``'2,3'``, ``'2,3,4'`` (Table 3), or None to
            leave queries and keys alone. Numbers are read as well, as a command line gives them: ``4``, ``[2, 3]``.
        query_key: Position of queries and keys: ``'G+E'``, ``'G'`` or ``'E'`` (Gabor functions, edge markers, see
            :class:`GaborPosition`), or ``'LE'``, a learned table (Table 4). Default None: ``'G+E'``.
        value: Position of values: ``'E'`` (default), ``'G+E'``, ``'G'``, ``'LE'``, or None for none.
        channels: Position channels of part 4 per head (in Figure 11, more than 16 bring little). Default None:
            C / heads, which has the published parameter counts.

    Raises:
        ValueError: If an option is unknown or given for a part that is not chosen, or nothing is chosen.

    Parameters per channel and layer with one prefix token, in units of ``C``, as published in Tables 3 to 5 for DeiT-Ti
    (12 layers of 192 channels):

    * part 4: 14 for each of q and k (12 in eq. 9, the bias, the class token's entry); E in v: 6. Together 34 (78.3 K);
      ``value=None``: 28 (64.5 K), ``value='G+E'``: 42 (96.8 K), ``parts=None``: 6 (13.8 K).
    * The counts of Table 3 for parts 2,3 (69.1 K = 30 C) and 2,3,4 (96.8 K = 42 C) do not follow from the text. They
      do if these parts have 12 per channel: no bias, no class token's entry. A bias would not be position there: in
      part 2 it gives a key the same score with every query, in part 3 it cancels in the softmax. So parts 2,3 have two
      such tensors, 2 * 12 + 6 = 30; parts 2,3,4 have a third, which stands beside queries and keys alike,
      3 * 12 + 6 = 42. That is this class's reading; prefix tokens have no position in it.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        parts: str | int | Sequence[int] | None = '4',
        query_key: str | None = None,
        value: str | None = 'E',
        channels: int | None = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.parts = () if parts is None else _parts(parts)
        if not self.parts and value is None:
            raise ValueError('parts and value are both None: there is no position left to add')
        if query_key is not None and not self.parts:
            raise ValueError(f'query_key needs parts, got query_key={query_key!r}, parts=None')
        if channels is not None and '4' not in self.parts:
            raise ValueError(f'channels needs part 4, got channels={channels}, parts={parts!r}')
        width = self.embed_dims // self.num_heads
        self.channels = width if channels is None else check_positive_int('channels', channels)
        # Parts 2 and 3 meet content; beside them, one position of part 4 serves queries and keys.
        on_content, beside = '2' in self.parts, '4' in self.parts
        of_query_key = partial(
            self._position, 'query_key', 'G+E' if query_key is None else query_key, bare=on_content
        )
        self.query_on_content = of_query_key(width) if on_content else None
        self.key_on_content = of_query_key(width) if on_content else None
        self.query = of_query_key(self.channels) if beside else None
        self.key = of_query_key(self.channels) if beside and not on_content else None
        self.value = None if value is None else self._position('value', value, width)

    def prepare(self, query: Layout, key: Layout) -> PlacedChannels:
        """What the tokens receive; keys and values on a coarser grid (PVT) have the position of its cells."""
        modules = (
            (self.query_on_content, query),
            (self.key_on_content, key),
            (self.query, query),
            (self.key or self.query, key),
            (self.value, key),
        )
        return PlacedChannels(*(self._in_heads(module, layout) for module, layout in modules))

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: PlacedChannels
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Widen queries and keys, add to values; ``(B, heads, P + H * W, C / heads)`` each."""
        queries, keys = [query], [key]
        if rows.added_to_query is not None and rows.against_query is not None:
            # [q + pos_q, q] [k, pos_k]^T is parts 1, 2 and 3, without part 4.
            queries = [query + rows.added_to_query.to(query.dtype), query]
            keys.append(rows.against_query)
        if rows.beside_query is not None and rows.beside_key is not None:
            queries.append(rows.beside_query)
            keys.append(rows.beside_key)
        if rows.added_to_value is not None:
            value = value + rows.added_to_value.to(value.dtype)
        return _side_by_side(queries), _side_by_side(keys), value

    def _position(
        self, option: str, variant: str, width: int, bare: bool = False
    ) -> PositionEmbedding:
        """One embedding of all heads side by side; a ``bare`` one has neither bias nor prefix rows."""
        sizes = (self.num_heads * width, self.grid, 0 if bare else self.num_prefix_tokens)
        if check_option(option, variant, VARIANTS) == 'LE':
            return LearnedPosition(*sizes)
        return GaborPosition(*sizes, variant=variant, with_bias=not bare)

    def _in_heads(self, position: PositionEmbedding | None, layout: Layout) -> Tensor | None:
        """``(1, heads, P + H * W, channels)``; prefix rows that an embedding does not have are zero."""
        if position is None:
            return None
        rows = position(layout.grid)
        rows = F.pad(rows, (0, 0, layout.num_prefix - position.num_prefix_tokens, 0))
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _parts(given: str | int | Sequence[int]) -> tuple[str, ...]:
    """``'2,3'`` or ``[2, 3]`` as ``('2', '3')``."""
    text = given if isinstance(given, str) else ','.join(map(str, np.atleast_1d(given)))
    return tuple(check_option('parts', text, PARTS).split(','))


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Concatenate channels; the first says the batch and the dtype."""
    first = parts[0]
    rest = (part.to(first.dtype).expand(first.shape[0], -1, -1, -1) for part in parts[1:])
    return torch.cat([first, *rest], dim=-1) if len(parts) > 1 else first
