"""Tensors that are stored for one grid or patch size, fitted to another."""

from __future__ import annotations

import math

import torch
from timm.layers import resample_patch_embed
from torch import Tensor, nn

from mmlape.checks import check_grid
from mmlape.layers import PatchEmbed
from mmlape.position import JoinedPosition, LearnedPosition, resize_table

from .position_tables import table_grid


class Fitter:
    """Fits foreign tensors to a model: position tables to its grid, patch kernels to its patch size.

    Args:
        model: The model.
        source_grid: Grid (height, width) of the source's position tables in tokens, needed where it is not square.
    """

    def __init__(self, model: nn.Module, source_grid: int | tuple[int, int] | None = None) -> None:
        self.source_grid = None if source_grid is None else check_grid('source_grid', source_grid)
        self._tables: dict[int, LearnedPosition] = {}
        self._kernels: set[int] = set()
        self._by_layer: set[int] = set()
        for module in model.modules():
            if isinstance(module, LearnedPosition):
                self._tables[id(module.pos_embed)] = module
            elif isinstance(module, JoinedPosition) and module.joining.table_per_layer:
                self._by_layer.add(id(module.embedding))
            elif isinstance(module, PatchEmbed) and module.patch_size == module.stride:
                self._kernels.add(id(module.proj.weight))

    def __call__(self, tensor: Tensor, value: Tensor) -> tuple[Tensor, str]:
        """Fit ``tensor`` to the entry ``value`` of the model.

        Returns:
            The tensor, still of another shape where nothing can be done, and what was done: '' for nothing.

        Raises:
            ValueError: If a position table's grid is neither square nor given.
        """
        if id(value) in self._tables:
            position = self._tables[id(value)]
            if id(position) in self._by_layer:  # layers after the last output are not built
                tensor = tensor[: position.num_tables]
            return fit_table(tensor, position, self.source_grid)
        if id(value) in self._kernels:
            return _fit_kernel(tensor, value)
        return tensor, ''


def fit_table(
    table: Tensor, position: LearnedPosition, source_grid: tuple[int, int] | None
) -> tuple[Tensor, str]:
    """Fit a table ``(K, P' + N', C)`` to a position's prefix rows and grid; also says what was done, '' for nothing."""
    if table.ndim != 3 or table.shape[2] != position.embed_dims:
        return table, ''
    num_prefix, grid = _layout(table.shape[1], position, source_grid)
    prefix, cells = table.tensor_split([num_prefix], dim=1)
    wanted = position.num_prefix_rows
    if (num_prefix, grid) == (wanted, position.grid):
        return table, ''
    # A table without rows for prefix tokens adds nothing to them.
    missing = table.new_zeros(len(table), max(wanted - num_prefix, 0), table.shape[2])
    fitted = torch.cat(
        [prefix[:, :wanted], missing, resize_table(cells, grid, position.grid, position.resize)],
        dim=1,
    )
    return fitted, (
        f'{num_prefix} + {grid[0]} x {grid[1]} rows to '
        f'{wanted} + {position.grid[0]} x {position.grid[1]}'
    )


def _layout(
    rows: int, position: LearnedPosition, grid: tuple[int, int] | None
) -> tuple[int, tuple[int, int]]:
    """Prefix rows and grid of a foreign table: as given, or the model's own, else a square after 0 to 2 prefix rows."""
    if grid is None and rows == position.pos_embed.shape[1]:
        return position.num_prefix_rows, position.grid
    try:
        return table_grid(rows, grid)
    except ValueError as error:
        raise ValueError(f'{error}, as source_grid=(height, width)') from error


def _fit_kernel(kernel: Tensor, value: Tensor) -> tuple[Tensor, str]:
    """Resample ``(C, channels, h, w)`` to another patch size by the pseudo-inverse of resizing (FlexiViT, CVPR 2023,
    section 3.4): what it makes of a patch resized alike stays the same as nearly as it can. That of a linear layer
    (NaFlex) is ``(C, h * w * channels)``, with h = w."""
    if kernel.ndim == 2:
        side = math.isqrt(kernel.shape[1] // value.shape[1])
        if kernel.shape[1] != side * side * value.shape[1]:
            return kernel, ''
        kernel = kernel.unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)
    if kernel.ndim != 4 or kernel.shape[:2] != value.shape[:2] or kernel.shape == value.shape:
        return kernel, ''
    size = list(value.shape[2:])
    how = f'patches of {kernel.shape[2]} x {kernel.shape[3]} pixels to {size[0]} x {size[1]}'
    return resample_patch_embed(kernel.float(), size), how
