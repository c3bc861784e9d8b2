"""Relative position bias of attention scores, from a table or from a small network."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, cast

import timm.layers
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmlape.checks import check_eps, check_number, check_option, check_positive_int
from mmlape.layout import Grid, Layout, cached, centres
from mmlape.registry import MODELS

from .attention_position import AttentionPosition
from .embeddings import resize_table

# The longest side of a grid with a cached index for every pair of cells, of half a megabyte at most.
FEW = 16


class OffsetBias(AttentionPosition):
    """Base class: a bias of the scores for the offset between two cells. A subclass writes :meth:`table`."""

    changes_queries = False
    pe_norm: nn.LayerNorm | None
    prefix_table: nn.Parameter | None

    @abstractmethod
    def table(self, grid: Grid) -> Tensor:
        """Biases of all offsets query - key on ``grid = (H, W)``, ``((2 * H - 1) * (2 * W - 1), heads)`` by rows."""

    def bias(
        self,
        query: Layout,
        key: Layout | None = None,
        rows: tuple[Grid, Tensor] | None = None,
        step: int = 1,
    ) -> Tensor:
        """``(1, heads, queries, keys)``; zero for prefix tokens without ``prefix_scores``.

        ``key`` is ``query`` by default; ``rows`` are a grid and its :meth:`table`, used if it is that of queries; only
        every ``step``-th row and column of that grid has queries.
        """
        key = query if key is None else key
        grid, table = rows or (None, None)
        table = table if table is not None and grid == query.grid else self.table(query.grid)
        bias = self._between(table, query.grid, key.grid, step)
        keys, queries = key.num_prefix, query.num_prefix
        if self.prefix_table is None:
            return F.pad(bias, (keys, 0, queries, 0)) if keys or queries else bias
        read = self.prefix_table.to(bias.dtype)[1, None, :, None, None]
        cells = torch.cat([read.expand(-1, -1, bias.shape[2], keys), bias], dim=3)
        above = self._of_prefix(self.prefix_table.to(bias.dtype), queries, key)
        return torch.cat([above, cells], dim=2)

    def prefix_bias(self, layout: Layout) -> Tensor | None:
        """``(1, heads, P, P + H * W)``, or None without ``prefix_scores``."""
        if self.prefix_table is None:
            return None
        return self._of_prefix(self.prefix_table, layout.num_prefix, layout)

    def _of_prefix(self, table: Tensor, queries: int, key: Layout) -> Tensor:
        """Return the bias on the scores of ``queries`` prefix tokens, ``(1, heads, queries, P + H * W)``."""
        reading, _, among = table[:, None, :, None, None]
        columns = (
            among.expand(-1, -1, queries, key.num_prefix),
            reading.expand(-1, -1, queries, key.num_cells),
        )
        return torch.cat(columns, dim=3)

    def _between(self, table: Tensor, queries: Grid, keys: Grid, step: int) -> Tensor:
        """``(1, heads, N, A * E)`` for every ``step``-th row and column of ``queries`` and all of ``A x E`` keys."""
        if queries == keys and all(isinstance(side, int) and side <= FEW for side in keys):
            bias = _of_pairs(table, keys, step)
        else:
            bias = table.unflatten(0, [2 * side - 1 for side in queries])
            # Axis by axis: indices for every pair of cells would take 148 MB at 50 x 84.
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

    The table is resized, in float32, to other grids than the pre-training grid, and interpolated linearly for keys on a
    coarser grid (PVT), which lie between its offsets.

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size: As in :class:`AttentionPosition`; ``window_size``
            replaces ``grid``.
        layer_norm: LaPE's form: a LayerNorm over the key axis of the bias (arXiv v1, appendix B). Its weight and bias
            have one value per key, and are resized with the grid. Default False.
        eps: Added to its variance. Default 1e-5, as in the published code.
        mirrored: LeViT's form: offsets that differ in their signs only share a value (ICCV 2021, section 4.2).
            Default False.
        std: Standard deviation of the initial values, a normal distribution truncated at two units. Default 0: zeros,
            as in the published LaPE code and LeViT; Swin's is 0.02. Under ``layer_norm`` any other value becomes a
            random bias of standard deviation 1.
        prefix_scores: BEiT's form: three learned values per head for the scores of prefix tokens. Default False: 0.
        resize: To another grid: ``'bicubic'`` (default) or ``'geometric'``, BEiT's, see
            :func:`~mmlape.position.resize_table`.

    Raises:
        ValueError: If a number is out of range, ``resize`` is unknown, or ``prefix_scores`` meet ``layer_norm``.

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
        if prefix_scores and layer_norm:
            raise ValueError('prefix_scores=True and layer_norm=True exclude one another')
        eps = check_eps(eps)
        self.pe_norm = nn.LayerNorm(height * width, eps=eps) if layer_norm else None
        table = torch.zeros(3, self.num_heads)
        self.prefix_table = nn.Parameter(table) if prefix_scores else None

    def table(self, grid: Grid) -> Tensor:
        """The table for ``grid = (H, W)``: ``((2 * H - 1) * (2 * W - 1), heads)``."""
        source, target = ((2 * height - 1, 2 * width - 1) for height, width in (self.grid, grid))
        table = self.relative_position_bias_table
        if self.mirrored:
            table = table.unflatten(0, self.grid)
            for axis, side in enumerate(self.grid):
                table = table.index_select(axis, _all_offsets(side, table.device).abs())
            table = table.flatten(0, 1)
        return resize_table(table[None], source, target, self.resize).squeeze(0)


class SharedOffsetBias(OffsetBias):
    """Mixin: one bias for all layers. Its table is made once per pass, and again in each layer with windows."""

    shared = True

    def prepare(self, query: Layout, key: Layout, drawn: Any = None) -> tuple[Grid, Tensor]:
        """The grid of queries and its :meth:`table`."""
        return query.grid, self.table(query.grid)


@MODELS.register_module()
class SharedRelativePositionBias(SharedOffsetBias, RelativePositionBias):
    """:class:`RelativePositionBias`, the same for all layers (BEiT's pre-training, ICLR 2022). The table is that of the
    image's grid; in layers with windows it is resized to theirs."""


@cached
def _offsets(queries: int, keys: int, step: int, device: torch.device) -> Tensor:
    """Index ``(queries * keys,)`` of the offset of every pair on an axis; fractional where keys are coarser."""
    own, others = (centres(count, queries, device) for count in (queries, keys))
    offsets = (own[::step, None] - others[None]).flatten() + (queries - 1)
    return offsets.long() if queries == keys else offsets


def _of_pairs(table: Tensor, grid: Grid, step: int) -> Tensor:
    """``(heads, queries, keys)``: the row of a table of offsets for every pair, by one operator."""
    index = _pairs(grid, step, table.device)
    bias = table.t().index_select(1, index.flatten()).unflatten(1, index.shape)
    return bias[..., : grid[0] * grid[1]]


@cached
def _pairs(grid: Grid, step: int, device: torch.device) -> Tensor:
    """Rows of a table of offsets, ``(queries, keys)``, with columns up to a multiple of 8: attention kernels on GPUs
    would copy a bias whose rows begin elsewhere."""
    rows, columns = (_offsets(side, side, step, device).view(-1, side) for side in grid)
    index = rows[:, None, :, None] * (2 * grid[1] - 1) + columns[:, None]
    return F.pad(index.flatten(2).flatten(0, 1), (0, -grid[0] * grid[1] % 8))


def _at_offsets(table: Tensor, axis: int, queries: int, keys: int, step: int) -> Tensor:
    """Select the entry of every pair of query and key from an axis of offsets ``1 - queries .. queries - 1``."""
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
    """A small network computes the bias on the scores from the offset between two cells, in log-spaced coordinates
    ``sign(d) log(1 + |d|)`` (Swin V2, CVPR 2022, section 3.3, in timm's form).

    Args:
        embed_dims, num_heads, grid, num_prefix_tokens, window_size: As in :class:`AttentionPosition`.
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
        self.pe_norm = self.prefix_table = None
        self.mlp = timm.layers.Mlp(2, hidden_dims, self.num_heads, nn.ReLU, drop=(0.125, 0.0))
        for layer in (self.mlp.fc1, self.mlp.fc2):
            nn.init.trunc_normal_(layer.weight, std=0.02)
            nn.init.zeros_(cast(Tensor, layer.bias))

    def table(self, grid: Grid) -> Tensor:
        """Biases of all offsets on ``grid = (H, W)``, ``((2 * H - 1) * (2 * W - 1), heads)``."""
        weight = self.mlp.fc1.weight
        return self.mlp(_log_offsets(grid, weight.device).to(weight.dtype))


@MODELS.register_module()
class SharedRelativePositionMlp(SharedOffsetBias, RelativePositionMlp):
    """:class:`RelativePositionMlp`, the same for all layers: the network runs once per pass, and again in layers with
    windows, for theirs."""


@cached
def _all_offsets(side: int, device: torch.device) -> Tensor:
    """``1 - side .. side - 1``."""
    return torch.arange(1 - side, side, device=device)


@cached
def _log_offsets(grid: Grid, device: torch.device) -> Tensor:
    """Return ``sign(d) log(1 + |d|)`` of all offsets d, ``((2 * H - 1) * (2 * W - 1), 2)``."""
    axes = (_all_offsets(side, device).float() for side in grid)
    return torch.cartesian_prod(*(offsets.sign() * offsets.abs().log1p() for offsets in axes))
