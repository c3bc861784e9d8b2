"""Learned position tables in a state dict, and another embedding's parameters in their place."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from mmlape.layout import Layout

_TABLE = re.compile(r'(^|\.)pos_embed(\d*)$')


def find_tables(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Learned position tables by name: ``pos_embed``, or ``pos_embed1``, ... of a pyramid, under any prefix.

    Raises:
        ValueError: If there is none.
    """
    found = {
        name: value
        for name, value in state.items()
        if _TABLE.search(name) and isinstance(value, Tensor) and value.ndim == 3
    }
    if not found:
        raise ValueError('the state dict has no learned position table (pos_embed)')
    return found


def table_grid(rows: int, grid: tuple[int, int] | None = None) -> tuple[int, tuple[int, int]]:
    """Prefix rows and grid of a table with ``rows`` rows.

    Args:
        rows: ``P + H * W``.
        grid: ``(H, W)`` if known. Default None: a square after 0 to 2 prefix rows.

    Raises:
        ValueError: If there is no such square, or ``grid`` has more cells than there are rows.
    """
    if grid is not None:
        if grid[0] * grid[1] > rows:
            raise ValueError(f'the grid {grid} has more cells than the table has rows, {rows}')
        return Layout.around(grid, rows).num_prefix, grid
    for num_prefix in (1, 0, 2):
        side = math.isqrt(max(rows - num_prefix, 0))
        if side and side * side == rows - num_prefix:
            return num_prefix, (side, side)
    raise ValueError(f'a table of {rows} rows is no square after 0 to 2 prefix rows: give its grid')


def replace_table(
    state: Mapping[str, Any], name: str, parameters: Mapping[str, Tensor]
) -> dict[str, Any]:
    """A state dict with the parameters of another embedding in place of a table, under the names of our backbones.

    ``pos_embed`` becomes ``position.embedding.*`` (a ViT), ``pos_embed1`` becomes ``position1.embedding.*`` (the first
    stage of a pyramid).

    Args:
        state: Not changed.
        name: Name of the table.
        parameters: State dict of the embedding.
    """
    place = _TABLE.sub(r'\1position\2.embedding.', name)
    replaced = {key: value for key, value in state.items() if key != name}
    return {**replaced, **{place + key: value for key, value in parameters.items()}}
