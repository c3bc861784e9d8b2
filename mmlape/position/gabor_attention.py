"""Gabor and edge-marker position inside the attention, and ConViT's quadratic bias."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_option, check_positive_int
from mmlape.layout import Grid, Layout, cached, centres
from mmlape.registry import MODELS

from .attention_position import AttentionPosition
from .embeddings import LearnedPosition, PositionEmbedding
from .fixed_embeddings import GaborPosition

PARTS = ('4', '2,3', '2,3,4')
VARIANTS = ('G+E', 'G', 'E', 'LE')
# Position channels of a layer's tokens, ``(1, heads, P + H * W, channels)`` each, or None.
Channels = tuple[Tensor | None, ...]


@MODELS.register_module()
class GaborAttention(AttentionPosition):
    r"""Position for the queries, keys and values of one layer (Gabor position encoding, section 4).

    The score of two tokens with absolute position has four parts (eq. 3): content against content (1), position against
    content (2), content against position (3), position against position (4). ``parts`` selects them. With part 4 (eq.
    13) queries and keys are widened by position channels; in parts 2 and 3 position has the width of a head. Values get
    edge markers (Table 4):

    .. math:: A = \mathrm{softmax}\Bigl(\frac{q k^T + [pos_q k^T + q\,pos_k^T]_{2,3} + [pos_q pos_k^T]_4}
        {\sqrt{d}}\Bigr) (v + E W_E + B), \qquad d = C / \mathrm{heads}

    d is the width of the head's *content*, not of the widened head: the paper adds position to networks that were
    trained without (section 4.3), whose own scores another factor would change. All of it is a sum of products of
    queries and keys, so it goes through ``scaled_dot_product_attention``, and no N x N map is made.

    Coordinates and edges are the image's, in a layer with windows too: its scores are those of global attention,
    restricted to the window. Padding of windows has no position. ``'LE'`` is resized to other grids, the others are
    computed for them.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size: As in :class:`AttentionPosition`.
        parts: Parts of the score: ``'4'`` (default; the paper's best), ``'2,3'``, ``'2,3,4'`` (Table 3), or None to
            leave queries and keys unchanged. A command line's ``4`` and ``[2, 3]`` are accepted.
        query_key: Position of queries and keys: ``'G+E'``, ``'G'`` or ``'E'`` (Gabor functions, edge markers, see
            :class:`GaborPosition`), or ``'LE'``, a learned table (Table 4). Default None: ``'G+E'``.
        value: Position of values: ``'E'`` (default), ``'G+E'``, ``'G'``, ``'LE'``, or None for none.
        channels: Position channels of part 4 per head (in Figure 11, more than 16 bring little). Default None:
            C / heads, which has the published parameter counts.

    Raises:
        ValueError: If an option is unknown or for a part that is not selected, or nothing is selected.

    Parameters per channel and layer with one prefix token, as in Tables 3 to 5 for DeiT-Ti (12 layers, 192 channels):

    * part 4: 14 for each of q and k (12 in eq. 9, bias, class token); E in v: 6. Together 34 (78.3 K); ``value=None``:
      28 (64.5 K), ``value='G+E'``: 42 (96.8 K), ``parts=None``: 6 (13.8 K).
    * The published counts for parts 2,3 (69.1 K, 30 per channel) and 2,3,4 (96.8 K, 42) do not follow from the text.
      They do without bias and class token, which would not be position there: in part 2 a bias gives a key the same
      score with every query, in part 3 it cancels in the softmax. So parts 2,3 have two tensors of 12 per channel;
      2,3,4 have a third, which is concatenated to both queries and keys; prefix tokens have no position in either.
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

    def prepare(self, query: Layout, key: Layout, drawn: Any = None) -> Channels:
        """Channels of the queries' grid and of the keys' (and values'), as :meth:`place` takes them."""
        modules = (
            (self.query_on_content, query),
            (self.key_on_content, key),
            (self.query, query),
            (self.key or self.query, key),
            (self.value, key),
        )
        return tuple(self._in_heads(module, layout, query.grid) for module, layout in modules)

    def place(
        self, query: Tensor, key: Tensor, value: Tensor, rows: Channels
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Widen queries and keys, add to values; ``(B, heads, P + H * W, C / heads)`` each."""
        added_to_query, against_query, beside_query, beside_key, added_to_value = rows
        queries, keys = [query], [key]
        if added_to_query is not None and against_query is not None:
            # [q + pos_q, q] [k, pos_k]^T is parts 1, 2 and 3, without part 4.
            queries = [query + added_to_query.to(query.dtype), query]
            keys.append(against_query)
        if beside_query is not None and beside_key is not None:
            queries.append(beside_query)
            keys.append(beside_key)
        if added_to_value is not None:
            value = value + added_to_value.to(value.dtype)
        return _side_by_side(queries), _side_by_side(keys), value

    def _position(
        self, option: str, variant: str, width: int, bare: bool = False
    ) -> PositionEmbedding:
        """Build one embedding of all heads side by side; a ``bare`` one has neither bias nor prefix rows."""
        sizes = (self.num_heads * width, self.grid, 0 if bare else self.num_prefix_tokens)
        if check_option(option, variant, VARIANTS) == 'LE':
            return LearnedPosition(*sizes)
        return GaborPosition(*sizes, variant=variant, with_bias=not bare)

    def _in_heads(
        self, position: PositionEmbedding | None, layout: Layout, within: Grid
    ) -> Tensor | None:
        """``(1, heads, P + H * W, channels)``; prefix rows that an embedding does not have are zero."""
        if position is None:
            return None
        if isinstance(position, GaborPosition):
            rows = position(layout.grid, within)
        else:
            rows = position(layout.grid)
        rows = F.pad(rows, (0, 0, layout.num_prefix - position.num_prefix_tokens, 0))
        return rows.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


def _parts(value: str | int | Sequence[int]) -> tuple[str, ...]:
    """``'2,3'`` or ``[2, 3]`` as ``('2', '3')``."""
    text = value if isinstance(value, str) else ','.join(map(str, np.atleast_1d(value)))
    return tuple(check_option('parts', text, PARTS).split(','))


def _side_by_side(parts: list[Tensor]) -> Tensor:
    """Concatenate channels, in the batch and dtype of the first."""
    first = parts[0]
    rest = (part.to(first.dtype).expand(first.shape[0], -1, -1, -1) for part in parts[1:])
    return torch.cat([first, *rest], dim=-1) if len(parts) > 1 else first


@cached
def grid_offsets(
    queries: Grid, keys: Grid, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """:func:`axis_offsets` of rows, and of columns."""
    return tuple(axis_offsets(own, others, device, dtype) for own, others in zip(queries, keys))


def axis_offsets(queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Offsets ``d = i - j`` between the cells of an axis, in cells of the keys: d and d^2, ``(2, queries, keys)``."""
    own, others = centres(queries, keys, device), centres(keys, keys, device)
    offsets = (own[:, None] - others[None]).to(dtype)
    return torch.stack([offsets, offsets.square()])


def local_rows(num_heads: int) -> Tensor:
    """Initial ``(a_x, a_y, a_2)``, ``(k^2, 3)`` with k = floor(sqrt(G)), of heads that see k x k cells around (eq. 7).

    Head ``k n + m`` gets ``(2 D_n, 2 D_m, -1)`` with offsets D centred on zero: half cells for an even k.
    """
    side = math.isqrt(num_heads)
    centre = 2 * torch.arange(side, dtype=torch.float32) - (side - 1)
    pairs = torch.cartesian_prod(centre, centre).view(-1, 2)
    return torch.cat([pairs, -torch.ones(side * side, 1)], dim=1)


class QuadraticScores(nn.Module):
    """``a_x dx + a_y dy + a_2 (dx^2 + dy^2)`` with a learned ``a`` per head (eq. 6): a part of dx and a part of dy.

    ``weight`` ``(G, 3)`` holds ``(a_x, a_y, a_2)``: the factors of dx, dy and dx^2 + dy^2, offsets counted from token j
    to token i, as in published weights (the paper writes ``[a_2, a_x, a_y]``).

    Args:
        num_heads: ``G``.
        init: ``'local'`` (default) for eq. 7, see :func:`local_rows`, which leaves heads beyond the largest square
            number random; ``'random'`` for all random: a normal distribution with standard deviation 0.02.

    Raises:
        ValueError: If ``init`` is neither.
    """

    def __init__(self, num_heads: int, init: str = 'local') -> None:
        super().__init__()
        self.init = check_option('position_init', init, ('local', 'random'))
        self.weight = nn.Parameter(torch.empty(num_heads, 3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise by ``init``."""
        nn.init.trunc_normal_(self.weight, std=0.02)
        if self.init == 'local':
            rows = local_rows(len(self.weight))
            with torch.no_grad():
                self.weight[: len(rows)] = rows

    def along_axes(
        self, queries: Grid, keys: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The part of dy ``(G, H, A)`` and the part of dx ``(G, W, E)``, computed in ``dtype``."""
        # Flat offsets, unflattened later, would not compile: (A * A) / A is not seen to be A.
        a_x, a_y, a_2 = self.weight.to(dtype)[:, :, None, None].unbind(dim=1)
        dy, dx = grid_offsets(queries, keys, device, dtype)
        # No matrix product, which autocast would do in half precision: squares of offsets are too large for it.
        return a_y * dy[0] + a_2 * dy[1], a_x * dx[0] + a_2 * dx[1]


@MODELS.register_module()
class QuadraticBias(AttentionPosition):
    """Adds DTN's relative position to the scores: ``R a`` of eq. 6 (ICLR 2022, Table 10, "MHSA w/ Eqn. (6)").

    The score of a pair of cells with the offset ``(dx, dy)``, from the key to the query, gets ``a_x dx + a_y dy + a_2
    (dx^2 + dy^2)``, with three learned numbers per head; scores of prefix tokens get nothing. Offsets are in cells of
    the keys, where those are on a coarser grid (PVT); in a layer with windows they are those within a window.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size: As in :class:`AttentionPosition`.
        position_init: ``'random'`` (default), a normal distribution with standard deviation 0.02; or ``'local'``, eq.
            7, with which every head sees only its neighbourhood at first. The paper names eq. 6 only.

    Raises:
        ValueError: If ``position_init`` is neither.

    Shape:
        ``scores.weight``: ``(heads, 3)``, ``(a_x, a_y, a_2)``.
    """

    changes_queries = False

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        position_init: str = 'random',
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.scores = QuadraticScores(self.num_heads, position_init)

    def bias(self, query: Layout, key: Layout, rows: Any = None) -> Tensor:
        """``(1, heads, P + H * W, P + A * E)``; zero for prefix tokens."""
        weight = self.scores.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        along_y, along_x = self.scores.along_axes(query.grid, key.grid, weight.device, dtype)
        pairs = along_y[:, :, None, :, None] + along_x[:, None, :, None]
        bias = pairs.flatten(3).flatten(1, 2)
        return F.pad(bias, (key.num_prefix, 0, query.num_prefix, 0)).unsqueeze(0)
