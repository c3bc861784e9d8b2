"""From a foreign state dict to one that our model loads strictly."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from typing import Any

import torch
from mmengine.logging import print_log
from torch import Tensor, nn

from mmlape.checks import check_grid, check_option
from mmlape.position import LearnedPosition, resize_table

from .formats import FORMATS, State
from .report import LoadReport


def convert(
    state_dict: Mapping[str, Any],
    source: str,
    model: nn.Module,
    *,
    min_matched: float = 0.95,
    source_grid: int | tuple[int, int] | None = None,
) -> State:
    """Convert a foreign state dict for ``model.load_state_dict(..., strict=True)``.

    Position tables are resized to the model's pre-training grid. Entries that the source lacks (LaPE's norms in an
    ordinary DeiT file, the adapter around a ViT) keep the model's present values. All of it is logged.

    Args:
        state_dict: Names to tensors; a checkpoint that holds them under ``state_dict`` or ``model`` is unwrapped, and
            the prefixes ``module.`` and ``backbone.`` are stripped.
        source: ``'timm'``, ``'deit'``, ``'lape'``, ``'pvt'``, ``'dtn'``, ``'vit_adapter'``, or ``'mmlape'`` for ours.
        model: One of our backbones. A ViT's weights may go into a ``ViTAdapter``, then its ``vit`` receives them.
        min_matched: Least share of the values of the part that the source describes which must come from it.
            Default 0.95.
        source_grid: Grid (height, width) of the source's position table in tokens; needed where it is not square.

    Returns:
        A state dict with all names of ``model``.

    Raises:
        ValueError: If the source is unknown or does not describe such a model, a shape does not fit, or less than
            ``min_matched`` of the values came from it.
        TypeError: If ``state_dict`` holds something that is no tensor.
    """
    state, report = convert_with_report(state_dict, source, model, source_grid=source_grid)
    if report.matched_fraction < min_matched:
        raise ValueError(
            f'only {report.matched_fraction:.1%} of the values come from the source, at least '
            f'{min_matched:.0%} are asked for (min_matched). Is {source!r} the right source?\n{report}'
        )
    print_log(str(report), logger='current', level=logging.INFO)
    return state


def convert_with_report(
    state_dict: Mapping[str, Any],
    source: str,
    model: nn.Module,
    *,
    source_grid: int | tuple[int, int] | None = None,
) -> tuple[State, LoadReport]:
    """Like :func:`convert`, without its demand and its log; returns the state dict and the report."""
    adapter = FORMATS[check_option('source', source, FORMATS)]
    foreign = _unwrap(state_dict)
    part = adapter.part(model, foreign)
    theirs = adapter.rename(foreign)
    described = model.get_submodule(part)
    report = LoadReport(source)
    prefix = f'{part}.' if part else ''

    ours = model.state_dict()
    converted = dict(ours)
    tables = {
        id(module.pos_embed): module
        for module in described.modules()
        if isinstance(module, LearnedPosition)
    }
    for name, value in described.state_dict(keep_vars=True).items():
        report.sizes[prefix + name] = value.numel()
        if name not in theirs:
            report.fresh[prefix + name] = 'not in the source'
            continue
        tensor = theirs.pop(name)
        how = ''
        if id(value) in tables:
            tensor, how = _fit_table(tensor, tables[id(value)], source_grid)
        if tensor.shape != value.shape:
            raise ValueError(
                f'{prefix + name} has the shape {tuple(tensor.shape)} in the source, '
                f'{tuple(value.shape)} in the model'
            )
        converted[prefix + name] = tensor.to(value.dtype)
        if how:
            report.resized[prefix + name] = how
        else:
            report.matched.append(prefix + name)
    for name in ours:
        if name not in report.sizes:
            report.fresh[name] = f'outside of what {source!r} describes'
    report.unused = sorted(theirs)
    return converted, report


def _unwrap(checkpoint: Mapping[str, Any]) -> State:
    """The tensors of a checkpoint, prefixes of wrappers stripped."""
    for key in ('state_dict', 'model', 'module'):
        if isinstance(checkpoint.get(key), Mapping):
            return _unwrap(checkpoint[key])
    for name, tensor in checkpoint.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f'the state dict holds {name!r}, a {type(tensor).__name__}, not a tensor'
            )
    return {
        name.removeprefix('module.').removeprefix('backbone.'): tensor
        for name, tensor in checkpoint.items()
    }


def _fit_table(
    table: Tensor, position: LearnedPosition, source_grid: int | tuple[int, int] | None
) -> tuple[Tensor, str]:
    """Fit a table ``(K, P' + N', C)`` to a position's prefix rows and grid; also says what was done, '' for nothing."""
    if table.ndim != 3 or table.shape[2] != position.embed_dims:
        return table, ''
    if source_grid is None:
        num_prefix, grid = _guess_grid(table.shape[1], position)
    else:
        grid = check_grid('source_grid', source_grid)
        num_prefix = table.shape[1] - grid[0] * grid[1]
        if num_prefix < 0:
            raise ValueError(f'source_grid {grid} has more cells than the {table.shape[1]} rows')
    prefix, cells = table.tensor_split([num_prefix], dim=1)
    wanted = position.num_prefix_tokens
    # A table without rows for prefix tokens adds nothing to them.
    missing = table.new_zeros(len(table), max(wanted - num_prefix, 0), table.shape[2])
    fitted = torch.cat(
        [prefix[:, :wanted], missing, resize_table(cells, grid, position.grid)], dim=1
    )
    if (num_prefix, grid) == (wanted, position.grid):
        return fitted, ''
    return fitted, (
        f'{num_prefix} + {grid[0]} x {grid[1]} rows to '
        f'{wanted} + {position.grid[0]} x {position.grid[1]}'
    )


def _guess_grid(rows: int, position: LearnedPosition) -> tuple[int, tuple[int, int]]:
    """Prefix rows and grid of a foreign table: the model's own layout, else a square grid after 0 to 2 prefix rows."""
    if rows == position.pos_embed.shape[1]:
        return position.num_prefix_tokens, position.grid
    for num_prefix in (1, 0, 2):
        side = math.isqrt(max(rows - num_prefix, 0))
        if side and side * side == rows - num_prefix:
            return num_prefix, (side, side)
    raise ValueError(
        f'a position table of {rows} rows is no square grid after 0 to 2 prefix rows: '
        'give its grid as source_grid=(height, width)'
    )
