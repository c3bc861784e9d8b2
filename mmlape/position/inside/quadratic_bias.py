"""Scores that are a quadratic function of the offset between two cells: DTN's R a (ICLR 2022, eq. 6).

DTN (:mod:`mmlape.norm`) makes weights of its statistics of them, :class:`QuadraticBias` puts them into the attention.

    G heads; queries on H x W cells, keys on A x E
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_option
from mmlape.kept import kept
from mmlape.layout import Grid, Layout
from mmlape.registry import MODELS

from .base import AttentionPosition, centres


@kept
def axis_offsets(queries: int, keys: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Offsets ``d = i - j`` between the cells of an axis, and their squares, in cells of the keys.

    Returns:
        ``(2, queries, keys)``: d and d^2 for i and j.
    """
    own, others = centres(queries, keys, device), centres(keys, keys, device)
    offsets = (own[:, None] - others[None]).to(dtype)
    return torch.stack([offsets, offsets.square()])


def local_rows(num_heads: int) -> Tensor:
    """Rows ``(a_x, a_y, a_2)`` that make heads look at a neighbourhood of ``sqrt(G) x sqrt(G)`` cells (eq. 7).

    Head ``k n + m`` (k = floor(sqrt(G))) gets ``(2 D_n, 2 D_m, -1)`` with offsets centred on zero, so that an even k
    gives half cells. Only the first k^2 heads have such a place: of 6 heads four, of 5 four, of 3 one.

    Returns:
        ``(k^2, 3)``.
    """
    side = math.isqrt(num_heads)
    centre = 2 * torch.arange(side, dtype=torch.float32) - (side - 1)
    pairs = torch.cartesian_prod(centre, centre).view(-1, 2)
    return torch.cat([pairs, -torch.ones(side * side, 1)], dim=1)


_INITS = {'local': local_rows, 'random': lambda num_heads: torch.empty(0, 3)}


class QuadraticScores(nn.Module):
    """``a_x dx + a_y dy + a_2 (dx^2 + dy^2)`` with a learned ``a`` per head (eq. 6): a part of dx and a part of dy.

    ``weight`` ``(G, 3)`` holds ``(a_x, a_y, a_2)``: the factors of dx, dy and dx^2 + dy^2, offsets counted from token j
    to token i, as in published weights (the paper writes ``[a_2, a_x, a_y]``).

    Args:
        num_heads: ``G``.
        init: ``'local'`` for eq. 7, see :func:`local_rows`; ``'random'`` for a normal distribution with standard
            deviation 0.02 truncated at 2, which makes scores nearly alike.

    Raises:
        ValueError: If ``init`` is neither.
    """

    def __init__(self, num_heads: int, init: str = 'local') -> None:
        super().__init__()
        self.init = check_option('position_init', init, _INITS)
        self.weight = nn.Parameter(torch.empty(num_heads, 3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise as asked for."""
        # Truncated at +-2, far out in the tails: as PyTorch, timm and the published networks do.
        nn.init.trunc_normal_(self.weight, std=0.02)
        rows = _INITS[self.init](len(self.weight))
        with torch.no_grad():
            self.weight[: len(rows)] = rows

    def along_axes(
        self, queries: Grid, keys: Grid, device: torch.device, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """The part of dy ``(G, H, A)`` and the part of dx ``(G, W, E)``, computed in ``dtype``."""
        # Not flat and unflattened: a compiler could not tell that (A * A) / A is A.
        a_x, a_y, a_2 = self.weight.to(dtype)[:, :, None, None].unbind(dim=1)

        def scores(linear: Tensor, lengths: tuple[int, int]) -> Tensor:
            offsets, squares = axis_offsets(*lengths, device, dtype)
            # No matrix product, which autocast would do in half precision: squares of offsets are too large for it.
            return linear * offsets + a_2 * squares

        rows, columns = map(scores, (a_y, a_x), zip(queries, keys))
        return rows, columns


@MODELS.register_module()
class QuadraticBias(AttentionPosition):
    """Adds DTN's relative position to the scores: ``R a`` of eq. 6 (ICLR 2022, Table 10, "MHSA w/ Eqn. (6)").

    The score of a pair of cells with the offset ``(dx, dy)``, from the key to the query, gets ``a_x dx + a_y dy + a_2
    (dx^2 + dy^2)``, with three learned numbers per head. Prefix tokens have no offsets: their scores get nothing. Any
    grid is served. Offsets are counted in cells of the keys, where those are on a coarser grid (PVT); in a layer with
    windows they are those within a window.

    Args:
        embed_dims: Channels ``C``; accepted for uniformity.
        num_heads: Heads.
        grid: Pre-training grid ``(H0, W0)`` in tokens; accepted for uniformity.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Accepted for uniformity.
        position_init: ``'random'`` (default), a normal distribution with standard deviation 0.02; or ``'local'``, eq.
            7, with which every head starts out to look at its neighbourhood alone. The paper names eq. 6 alone here.

    Raises:
        ValueError: If ``position_init`` is neither.

    Shape:
        ``scores.weight``: ``(heads, 3)``, ``(a_x, a_y, a_2)``.
    """

    places = False

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

    def bias(self, query: Layout, key: Layout) -> Tensor:
        """``(1, heads, P + H * W, P + A * E)``; zero for prefix tokens."""
        weight = self.scores.weight
        dtype = torch.promote_types(weight.dtype, torch.float32)
        rows, columns = self.scores.along_axes(query.grid, key.grid, weight.device, dtype)
        pairs = rows[:, :, None, :, None] + columns[:, None, :, None]
        bias = pairs.flatten(3).flatten(1, 2)
        return F.pad(bias, (key.num_prefix, 0, query.num_prefix, 0)).unsqueeze(0)
