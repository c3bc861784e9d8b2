"""Matching of state dicts to models by name, and tensors fitted to another grid or patch size."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from timm.layers import resample_patch_embed
from timm.models import adapt_input_conv
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from mmlape.checks import check_grid
from mmlape.layers import PatchEmbed
from mmlape.layout import Layout
from mmlape.position import JoinedPosition, LearnedPosition, RelativePositionBias, resize_table

from .report import LoadReport, listed

_SHAPES = re.compile(
    r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from checkpoint, '
    r'the shape in current model is torch\.Size\((.*?)\)'
)
# Left out by torch's own loading too: files of its old versions lack it.
_COUNTER = 'num_batches_tracked'
_EXTRA = '_extra_state'
_TABLE = re.compile(r'(^|\.)pos_embed(\d*)$')

Fitted = tuple[Tensor, str]


def match(model: nn.Module, state: Mapping[str, Any], source: str) -> LoadReport:
    """Load a state dict into a model as MMEngine will do afterwards, and report every entry.

    What a model renames or adds while it loads, for files of older versions, counts as it is then. The model may be
    wrapped or inside one of test-time augmentation. With ``problems`` in the report it was not changed.
    """
    while isinstance(model, BaseTTAModel) or is_model_wrapper(model):
        model = cast(nn.Module, model.module)
    own = model.state_dict()
    state = OrderedDict((re.sub(r'^module\.', '', name), value) for name, value in state.items())
    report = LoadReport(source, type(model).__name__)
    inside = [name for name, value in state.items() if _holds_weights(value)]
    for name in [n for n in state if not (isinstance(state[n], Tensor) or n.endswith(_EXTRA))]:
        report.left_out[name] = f'a {type(state.pop(name)).__name__}, not a tensor'
    report.problems += problems_of(state, own)
    if inside and not state:
        report.problems.append(f"its weights are under {inside[0]!r} instead of 'state_dict'")
    if report.problems:
        return report
    _load(model, state, report)
    report.matched = [n for n in state if n not in report.left_out and n not in report.fresh]
    # Where a model renames its entries, torch says what is missing by its modules, which `own` does not.
    values = dict([*model.named_parameters(), *model.named_buffers(), *own.items(), *state.items()])
    renamed = any(name not in own for name in report.fresh)
    taken = [n for n in own if n in state or not renamed]
    for name in (*taken, *report.matched, *report.fresh):
        value = values.get(name)
        report.sizes[name] = value.numel() if isinstance(value, Tensor) else 0
    return report


def _holds_weights(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(each, Tensor) for each in value.values())


def _load(model: nn.Module, state: OrderedDict[str, Any], report: LoadReport) -> None:
    """Load, and enter what was not taken into the report."""
    missing: list[str] = []

    def note(_: nn.Module, keys: Any) -> None:
        missing[:] = keys.missing_keys
        report.left_out.update(dict.fromkeys(keys.unexpected_keys, 'the model has no such entry'))

    handle = model.register_load_state_dict_post_hook(note)
    try:
        with takes_parts(model):
            model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # torch names all that does not fit, after it has loaded the rest
        for line in str(error).splitlines()[1:]:
            found = _SHAPES.search(line)
            if found:
                shapes = [map(int, re.findall(r'\d+', text)) for text in found.groups()[1:]]
                report.fresh[found[1]] = other_shape(*shapes)
            else:
                report.problems.append(line.strip())
    finally:
        handle.remove()
    for name in missing:
        if _COUNTER not in name:
            report.fresh.setdefault(name, 'not in the source')


@contextmanager
def takes_parts(model: nn.Module) -> Iterator[None]:
    """Let parameters that FSDP2 has shared out be loaded from whole tensors, while the block lasts.

    PyTorch's ``implicit_replication`` does so too, but not from 2.15 on where the first dimension is 1.
    """

    def share(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
        own = module.named_parameters(prefix.rstrip('.'), recurse=False, remove_duplicate=False)
        for name, parameter in own:
            if name in state and isinstance(parameter, DTensor):
                state[name] = part_of(state[name], parameter)

    handles = [each.register_load_state_dict_pre_hook(share) for each in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def part_of(value: Any, parameter: Tensor) -> Any:
    """Take this process's part of a whole tensor, if ``parameter`` has its shape and is shared out."""
    if not (isinstance(value, Tensor) and value.shape == parameter.shape):
        return value
    value = value.to(parameter.device)
    if not isinstance(parameter, DTensor):
        return value
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def other_shape(theirs: Iterable[int], ours: Iterable[int]) -> str:
    """Why an entry of another shape is not taken."""
    return f'it has the shape {tuple(theirs)} in the source, {tuple(ours)} in the model'


def problems_of(state: Mapping[str, Any], own: Mapping[str, Any] | None) -> list[str]:
    """Return what cannot be weights: NaN or infinite values, and tensors of another kind than the model's ``own``, the
    only ones checked, which may be infinite themselves (masks). None: all are checked."""
    not_finite, kinds = [], []
    for name, value in state.items():
        ours = None if own is None else own.get(name)
        if not isinstance(value, Tensor) or (own is not None and ours is None):
            continue
        if not _is_finite(value) and not (
            isinstance(ours, Tensor) and torch.equal(value.cpu(), ours.cpu())
        ):
            not_finite.append(f'{name} is NaN or infinite')
        if _COUNTER in name:
            continue
        if isinstance(ours, Tensor) and _kind(value) != _kind(ours):
            kinds.append(f'{name} is {value.dtype} in the source, {ours.dtype} in the model')
        elif own is None and name.endswith(('.weight', '.bias')) and _kind(value) != (True, False):
            kinds.append(f'{name} is {value.dtype}')
    return not_finite + [text.replace('torch.', '') for text in kinds]


def _is_finite(value: Tensor) -> bool:
    if value.is_meta or not any(_kind(value)):
        return True
    if value.is_floating_point() and value.element_size() == 1:
        value = value.float()  # 8-bit types know no isfinite
    return bool(torch.isfinite(value).all())


def _kind(value: Tensor) -> tuple[bool, bool]:
    return value.is_floating_point(), value.is_complex()


def misfits(report: LoadReport) -> list[str]:
    """Return why a state dict does not load strictly: missing names, other shapes, unknown names."""
    shapes = [name for name in report.fresh if 'shape' in report.fresh[name]]
    missing = [name for name in report.fresh if name not in shapes]
    first = f': {report.fresh[shapes[0]]}' if shapes else ''
    parts = (
        (missing, f'of {len(report.sizes)} entries are missing', ''),
        (shapes, 'have another shape', first),
        (list(report.left_out), 'are unknown to the model', ''),
    )
    return [f'{len(names)} {what} ({listed(names)}{why})' for names, what, why in parts if names]


def fitters(
    model: nn.Module,
    source_grid: int | tuple[int, int] | None = None,
    prefix_tokens: int = 0,
    with_rows: bool = False,
) -> dict[int, Callable[[Tensor], Fitted]]:
    """Functions that fit foreign tensors to a model's parameter, by its ``id``: position tables, and those of relative
    positions, to its grid, patch kernels to its patch size. They return the tensor, and what was done ('' for
    nothing). The source has ``prefix_tokens`` class and distillation tokens, and ``with_rows`` a row of its tables for
    each."""
    grid = None if source_grid is None else check_grid('source_grid', source_grid)
    positions = [module for module in model.modules() if isinstance(module, JoinedPosition)]
    per_layer = {id(module.embedding) for module in positions if module.joining.table_per_layer}
    found: dict[int, Callable[[Tensor], Fitted]] = {}
    first = None  # with several tables (PVT), the source's grids have the ratios of the model's
    for module in model.modules():
        if isinstance(module, LearnedPosition):
            first = first or module.grid
            height, width = (max(1, round(a / b)) for a, b in zip(first, module.grid))
            own = None if grid is None else (-(-grid[0] // height), -(-grid[1] // width))
            tables = module.num_tables if id(module) in per_layer else None
            found[id(module.pos_embed)] = partial(
                _fit_table,
                position=module,
                grid=own,
                tables=tables,
                prefix_tokens=prefix_tokens,
                with_rows=with_rows,
            )
        elif isinstance(module, RelativePositionBias) and not module.mirrored:
            table = module.relative_position_bias_table
            found[id(table)] = partial(_fit_offsets, position=module)
        elif isinstance(module, PatchEmbed) and module.patch_size == module.stride:
            found[id(module.proj.weight)] = partial(_fit_kernel, size=module.proj.weight.shape)
        elif isinstance(module, nn.Conv2d) and module.groups == 1 and module.in_channels != 3:
            # The first layer of a stem, or of a prior beside a ViT.
            size = module.weight.shape
            found.setdefault(id(module.weight), partial(_fit_channels, size=size))
    return found


def _fit_table(
    table: Tensor,
    position: LearnedPosition,
    grid: tuple[int, int] | None,
    tables: int | None = None,
    prefix_tokens: int = 0,
    with_rows: bool = False,
) -> Fitted:
    """Fit a table ``(K, P' + N', C)`` to a position's prefix rows and grid; only the first ``tables`` of the K."""
    if table.ndim != 3 or table.shape[2] != position.embed_dims:
        return table, ''
    table = table[:tables]  # layers after the last output are not built
    wanted, rows = position.num_prefix_rows, table.shape[1]
    height, width = position.grid
    if grid is None and rows - height * width in {wanted, prefix_tokens, 0}:
        grid, side = position.grid, math.isqrt(height * width)
        if height != width and side * side == height * width and rows == wanted + side * side:
            # transformers writes such tables too: the shape cannot tell.
            hint = f'source_grid=({side}, {side}) resizes those of a square grid'
            return table, f'rows taken for those of {height} x {width} cells; {hint}'
    prefixes = (
        (prefix_tokens, 0) if with_rows and prefix_tokens else (prefix_tokens, wanted, 1, 0, 2)
    )
    try:
        num_prefix, source = table_grid(rows, grid, prefixes)
    except ValueError as error:
        raise ValueError(f'{error}, as source_grid=(height, width)') from error
    if grid is None and with_rows and num_prefix < prefix_tokens:
        raise ValueError(
            f'a table of {rows} rows beside {prefix_tokens} prefix tokens has {source[0]} x {source[1]} cells and no '
            f'row for them, or {rows - prefix_tokens} cells, which are no square: give source_grid=(height, width)'
        )
    if num_prefix > max(2, wanted):
        raise ValueError(
            f'source_grid: a table of {table.shape[1]} rows has {num_prefix} more than {source[0]} x {source[1]} '
            f'cells, and tokens without a place are at most {max(2, wanted)}'
        )
    grid = source
    if (num_prefix, grid) == (wanted, position.grid):
        return table, ''
    prefix, cells = table.tensor_split([num_prefix], dim=1)
    # A table without rows for prefix tokens adds nothing to them.
    missing = table.new_zeros(len(table), max(wanted - num_prefix, 0), table.shape[2])
    cells = resize_table(cells, grid, position.grid, position.resize)
    return torch.cat([prefix[:, :wanted], missing, cells], dim=1), (
        f'{num_prefix} + {grid[0]} x {grid[1]} rows to '
        f'{wanted} + {position.grid[0]} x {position.grid[1]}'
    )


def _fit_offsets(table: Tensor, position: RelativePositionBias) -> Fitted:
    """Resize biases of the offsets of a square grid, or window, to those of a position's."""
    side = math.isqrt(len(table))
    if table.ndim != 2 or side * side != len(table) or side % 2 == 0:
        return table, ''
    source, grid = (side, side), position.grid
    target = (2 * grid[0] - 1, 2 * grid[1] - 1)
    # A table of another square can have the same length by chance: 5 x 13 cells and 8 x 8 have as many offsets.
    if len(table) == target[0] * target[1]:
        return table, ''
    cells = (side + 1) // 2
    how = f'offsets of {cells} x {cells} cells to {grid[0]} x {grid[1]}'
    return resize_table(table[None], source, target, position.resize)[0], how


def _fit_kernel(kernel: Tensor, size: torch.Size) -> Fitted:
    """Resample ``(C, channels, h, w)`` to another patch size by the pseudo-inverse of resizing (FlexiViT, CVPR 2023,
    section 3.4): what it makes of a patch resized alike stays the same as nearly as it can. That of a linear layer
    (NaFlex) is ``(C, h * w * channels)``, with h = w."""
    if kernel.ndim == 2:
        side = math.isqrt(kernel.shape[1] // size[1])
        if kernel.shape[1] != side * side * size[1]:
            return kernel, ''
        kernel = kernel.unflatten(1, (side, side, -1)).permute(0, 3, 1, 2)
    kernel, channels = _fit_channels(kernel, size)
    if kernel.ndim != 4 or kernel.shape[:2] != size[:2] or kernel.shape == size:
        return kernel, channels
    how = (
        f'{channels}, '.lstrip(', ')
        + f'patches of {kernel.shape[2]} x {kernel.shape[3]} pixels to {size[2]} x {size[3]}'
    )
    return resample_patch_embed(kernel.float(), list(size[2:])), how


def _fit_channels(kernel: Tensor, size: torch.Size) -> Fitted:
    """Fit a kernel for 3 channels, RGB, to other inputs: their sum for one; for more, all in turn, scaled so that what
    comes out is as large as before. timm's function."""
    channels = size[1]
    if kernel.ndim != 4 or kernel.shape[0] != size[0] or kernel.shape[1] != 3 or channels == 3:
        return kernel, ''
    return adapt_input_conv(channels, kernel), f'3 channels to {channels}'


def find_tables(state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Learned position tables by name: ``pos_embed``, or ``pos_embed1``, ... of a pyramid, under any prefix."""
    found = {
        name: value
        for name, value in state.items()
        if _TABLE.search(name) and isinstance(value, Tensor) and value.ndim == 3
    }
    if not found:
        raise ValueError('the state dict has no learned position table (pos_embed)')
    return found


def table_grid(
    rows: int, grid: tuple[int, int] | None = None, prefixes: Sequence[int] = (1, 0, 2)
) -> tuple[int, tuple[int, int]]:
    """Prefix rows and grid of a table with ``rows`` = ``P + H * W`` rows; without a ``grid``, a square after as many
    prefix rows as the first of ``prefixes`` that allows one. ValueError if there is none."""
    if grid is not None:
        if grid[0] * grid[1] > rows:
            raise ValueError(f'the grid {grid} has more cells than the table has rows, {rows}')
        return Layout.around(grid, rows).num_prefix, grid
    for num_prefix in prefixes:
        side = math.isqrt(max(rows - num_prefix, 0))
        if side and side * side == rows - num_prefix:
            return num_prefix, (side, side)
    raise ValueError(
        f'a table of {rows} rows is not a square after {", ".join(map(str, sorted({*prefixes})))} prefix rows: '
        'give its grid'
    )


def replace_table(
    state: Mapping[str, Any], name: str, parameters: Mapping[str, Tensor]
) -> dict[str, Any]:
    """A copy of ``state`` with the ``parameters`` of another embedding instead of the table ``name``."""
    place = _TABLE.sub(r'\1position\2.embedding.', name)
    replaced = {key: value for key, value in state.items() if key != name}
    return {**replaced, **{place + key: value for key, value in parameters.items()}}
