"""Relative position bias of attention scores, from a table or from a small network."""

from __future__ import annotations

from abc import abstractmethod
from typing import cast

import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_eps, check_number, check_option, check_positive_int
from mmlape.layout import Grid, Layout, cached
from mmlape.registry import MODELS

from .attention_position import AttentionPosition, centres
from .embeddings import resize_table


class OffsetBias(AttentionPosition):
    """What biases by the offset between two cells share; :meth:`table` says which they are."""

    places = False
    pe_norm: nn.LayerNorm | None
    prefix_table: nn.Parameter | None

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.register_module('pe_norm', None)
        self.register_parameter('prefix_table', None)

    @abstractmethod
    def table(self, grid: Grid) -> Tensor:
        """Of all offsets query - key on ``grid = (H, W)`` in raster order, ``((2 * H - 1) * (2 * W - 1), heads)``."""

    def bias(
        self,
        query: Layout | Grid,
        key: Layout | Grid | None = None,
        step: int = 1,
        table: Tensor | None = None,
    ) -> Tensor:
        """``(1, heads, queries, keys)``; zero for prefix tokens, which layouts have and grids have not, without
        ``prefix_scores``.

        Args:
            query: Where queries lie.
            key: Where keys lie. Default None, as queries.
            step: Only every so-manieth row and column of the queries' grid, from the first on, has queries. Default 1.
            table: :meth:`table` of the queries' grid, if it is there already. Default None.
        """
        key = query if key is None else key
        queries_on, keys_on = (query[0], query[1]), (key[0], key[1])
        table = self.table(queries_on) if table is None else table
        bias = self._between(table, queries_on, keys_on, step)
        keys, queries = (getattr(where, 'num_prefix', 0) for where in (key, query))
        if self.prefix_table is None:
            return F.pad(bias, (keys, 0, queries, 0)) if keys or queries else bias
        reading, read, among = self.prefix_table.to(bias.dtype)[:, None, :, None, None]
        cells = torch.cat([read.expand(-1, -1, bias.shape[2], keys), bias], dim=3)
        across = reading.expand(-1, -1, queries, bias.shape[3])
        above = torch.cat([among.expand(-1, -1, queries, keys), across], dim=3)
        return torch.cat([above, cells], dim=2)

    def _between(self, table: Tensor, queries: Grid, keys: Grid, step: int) -> Tensor:
        """``(1, heads, N, A * E)`` for every ``step``-th row and column of ``queries`` and all of ``A x E`` keys."""
        bias = table.unflatten(0, [2 * side - 1 for side in queries])
        # Rows, then columns: indices of one axis alone, instead of one for every pair of cells.
        for axis, sides in enumerate(zip(queries, keys)):
            bias = _at_offsets(bias, axis, *sides, step)
        bias = bias.unflatten(1, (-1, keys[1])).unflatten(0, (-1, keys[0]))
        bias = bias.permute(4, 0, 2, 1, 3).flatten(3, 4).flatten(1, 2)
        if self.pe_norm is not None:
            weight, shift = (
                resize_table(parameter.view(1, -1, 1), self.grid, keys).flatten()
                for parameter in (self.pe_norm.weight, self.pe_norm.bias)
            )
            bias = F.layer_norm(bias, weight.shape, weight, shift, self.pe_norm.eps)
        return bias.unsqueeze(0)


@MODELS.register_module()
class RelativePositionBias(OffsetBias):
    """A learned bias on the scores for every offset between two cells and head (Swin, ICCV 2021).

    Scores of prefix tokens get no bias, unless they have learned ones of their own. Another grid than the pre-training
    grid gets the table resized, in float32. Keys on a coarser grid (PVT) lie between the offsets of the table, which is
    interpolated linearly there.

    Args:
        embed_dims: Channels ``C``; accepted for uniformity.
        num_heads: Heads.
        grid: Pre-training grid ``(H0, W0)`` in tokens.
        num_prefix_tokens: Prefix tokens ``P``; they have no offsets. Default 0.
        window_size: Of a layer that attends in windows; it takes the place of ``grid``. Default None.
        layer_norm: LaPE's form: a LayerNorm over the key axis of the bias (arXiv v1, appendix B). Its weight and bias
            have one value per key, and are resized with the grid. Default False.
        eps: Added to its variance. Default 1e-5, as in the published code.
        mirrored: LeViT's form: offsets that differ in their signs alone share a value (ICCV 2021, section 4.2).
            Default False.
        std: Standard deviation of the initial values, a normal distribution truncated at two units. Default 0: zeros,
            as in the published LaPE code and LeViT; Swin's is 0.02. Under ``layer_norm`` any other value becomes a
            random bias of standard deviation 1.
        prefix_scores: BEiT's form: three learned values per head for the scores of prefix tokens. Default False.
        resize: To another grid: ``'bicubic'`` (default) or ``'geometric'``, BEiT's, see
            :func:`~mmlape.position.resize_table`.

    Raises:
        ValueError: If ``std`` is below 0, a size or ``eps`` is out of range, ``resize`` is unknown, or
            ``prefix_scores`` are to be normalised.

    Shape:
        ``relative_position_bias_table``: ``((2 * H0 - 1) * (2 * W0 - 1), heads)``, offsets query - key in raster
        order; ``(H0 * W0, heads)``, their absolute values, if ``mirrored``.
        ``prefix_table``: ``(3, heads)``, of what prefix tokens read from cells, cells from prefix tokens, and prefix
        tokens from one another; initially 0.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        layer_norm: bool = False,
        eps: float = 1e-5,
        mirrored: bool = False,
        std: float = 0.0,
        prefix_scores: bool = False,
        resize: str = 'bicubic',
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        self.grid = self.grid if self.window_size is None else self.window_size
        height, width = self.grid
        self.mirrored = mirrored
        self.resize = check_option('resize', resize, ('bicubic', 'geometric'))
        rows = height * width if mirrored else (2 * height - 1) * (2 * width - 1)
        table = torch.zeros(rows, self.num_heads)
        if check_number('std', std, minimum=0):
            nn.init.trunc_normal_(table, std=std)
        self.relative_position_bias_table = nn.Parameter(table)
        normed, eps = layer_norm, check_eps(eps)
        self.pe_norm = nn.LayerNorm(height * width, eps=eps) if normed else None
        if prefix_scores and normed:
            raise ValueError('prefix_scores=True and layer_norm=True exclude one another')
        table = torch.zeros(3, self.num_heads)
        self.prefix_table = nn.Parameter(table) if prefix_scores else None

    def table(self, grid: Grid) -> Tensor:
        """The table for ``grid = (H, W)``: ``((2 * H - 1) * (2 * W - 1), heads)``."""
        source, target = ((2 * height - 1, 2 * width - 1) for height, width in (self.grid, grid))
        table = self.relative_position_bias_table
        if self.mirrored:
            table = table.unflatten(0, self.grid)
            for axis, side in enumerate(self.grid):
                table = table.index_select(axis, _without_sign(side, table.device))
            table = table.flatten(0, 1)
        return resize_table(table[None], source, target, self.resize)[0]


class SharedOffsetBias(OffsetBias):
    """What one bias for all layers adds to its kind: the table of offsets is made once per pass. Layers with windows
    have offsets of their own, for which it is made in each."""

    shared = True

    def prepare(self, query: Layout, key: Layout) -> tuple[Grid, Tensor]:
        """The grid of queries, and the table of its offsets."""
        return query.grid, self.table(query.grid)

    def bias_with(self, rows: tuple[Grid, Tensor], query: Layout, key: Layout) -> Tensor:
        """Of the table, where it is that of these queries."""
        grid, table = rows
        return self.bias(query, key, table=table if query.grid == grid else None)


@MODELS.register_module()
class SharedRelativePositionBias(SharedOffsetBias, RelativePositionBias):
    """:class:`RelativePositionBias`, the same for all layers (BEiT's pre-training, ICLR 2022). The table is that of the
    image's grid; in layers with windows it is resized to theirs."""


@cached
def _without_sign(side: int, device: torch.device) -> Tensor:
    """Absolute values of all offsets on an axis, ``(2 * side - 1,)``."""
    return torch.arange(1 - side, side, device=device).abs()


@cached
def _offsets(queries: int, keys: int, step: int, device: torch.device) -> Tensor:
    """Offset of every pair of query and key on an axis, counted from the lowest, flat; fractions where keys are
    coarser."""
    own, others = (centres(count, queries, device) for count in (queries, keys))
    offsets = (own[::step, None] - others[None]).flatten() + (queries - 1)
    return offsets.long() if queries == keys else offsets


def _at_offsets(table: Tensor, axis: int, queries: int, keys: int, step: int) -> Tensor:
    """Entries of an axis of offsets ``-(queries - 1) .. queries - 1`` for every pair of query and key on it."""
    offsets = _offsets(queries, keys, step, table.device)
    if queries == keys:
        return table.index_select(axis, offsets)
    offsets = offsets.clamp(0, 2 * queries - 2)
    lower = offsets.floor().long()
    below, above = (
        table.index_select(axis, i) for i in (lower, (lower + 1).clamp(max=2 * queries - 2))
    )
    share = (offsets - lower).to(table.dtype).view([-1 if i == axis else 1 for i in range(3)])
    return torch.lerp(below, above, share)


@MODELS.register_module()
class RelativePositionMlp(OffsetBias):
    """The bias on the scores is what a small network makes of the offset between two cells, in log-spaced coordinates
    ``sign(d) log(1 + |d|)`` (Swin V2, CVPR 2022, section 3.3, in timm's form). Any grid is served; prefix tokens get no
    bias.

    Args:
        embed_dims: Channels ``C``; accepted for uniformity.
        num_heads: Heads.
        grid: Pre-training grid; accepted for uniformity.
        num_prefix_tokens: Prefix tokens ``P``. Default 0.
        window_size: Accepted for uniformity.
        hidden_dims: Hidden channels of the network. Default 128.

    Raises:
        ValueError: If a size is out of range.
    """

    def __init__(
        self,
        embed_dims: int,
        num_heads: int,
        grid: Grid,
        num_prefix_tokens: int = 0,
        window_size: int | Grid | None = None,
        hidden_dims: int = 128,
    ) -> None:
        super().__init__(embed_dims, num_heads, grid, num_prefix_tokens, window_size)
        check_positive_int('hidden_dims', hidden_dims)
        self.mlp = timm.layers.Mlp(2, hidden_dims, self.num_heads, nn.ReLU, drop=(0.125, 0.0))
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(cast(Tensor, layer.bias))

    def table(self, grid: Grid) -> Tensor:
        """Of all offsets on ``grid = (H, W)``, ``((2 * H - 1) * (2 * W - 1), heads)``."""
        weight = self.mlp.fc1.weight
        return self.mlp(_log_offsets(grid, weight.device).to(weight.dtype))


@MODELS.register_module()
class SharedRelativePositionMlp(SharedOffsetBias, RelativePositionMlp):
    """:class:`RelativePositionMlp`, the same for all layers: the network runs once per pass, and again in layers with
    windows, for theirs."""


@cached
def _log_offsets(grid: Grid, device: torch.device) -> Tensor:
    """``((2 * H - 1) * (2 * W - 1), 2)``, by rows and by columns."""
    axes = []
    for side in grid:
        offsets = torch.arange(1 - side, side, device=device, dtype=torch.float32)
        axes.append(offsets.sign() * offsets.abs().log1p())
    return torch.cartesian_prod(*axes)
