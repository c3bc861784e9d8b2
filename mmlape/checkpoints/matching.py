"""Which of a model's entries a state dict fills, and tensors fitted to another grid or patch size."""

from __future__ import annotations

import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from timm.layers import resample_patch_embed
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from mmlape.checks import check_grid
from mmlape.layers import PatchEmbed
from mmlape.layout import Layout
from mmlape.position import JoinedPosition, LearnedPosition, resize_table

from .report import LoadReport, listed

_SHAPES = re.compile(
    r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from checkpoint, '
    r'the shape in current model is torch\.Size\((.*?)\)'
)
# Left out by torch's own loading too: files of its old versions lack it.
_COUNTER = 'num_batches_tracked'
_EXTRA = '_extra_state'
_REAL = (True, False)
_WEIGHTS = ('.weight', '.bias')
_TABLE = re.compile(r'(^|\.)pos_embed(\d*)$')


def match(model: nn.Module, state: Mapping[str, Any], source: str) -> LoadReport:
    """Load a state dict into a model as MMEngine will do afterwards, and say what became of every entry.

    What a model renames or adds while it loads, for files of older versions, counts as it is then.

    Args:
        model: The model, in MMEngine's wrapper or not, or inside a model of test-time augmentation.
        state: Names to tensors, with or without the prefix ``module.``.
        source: What the report calls the state dict.

    Returns:
        The report; what is NaN or infinite, or of another kind (integers for weights), is in its ``problems``.
    """
    model = _bare(model)
    state = OrderedDict((re.sub(r'^module\.', '', name), value) for name, value in state.items())
    report = LoadReport(source, type(model).__name__)
    for name in [n for n in state if not (isinstance(state[n], Tensor) or n.endswith(_EXTRA))]:
        report.left_out[name] = f'a {type(state.pop(name)).__name__}, not a tensor'
    # FSDP would gather the whole model to name its entries.
    sharded = isinstance(model, FullyShardedDataParallel)
    own: Mapping[str, Any] = {} if sharded else model.state_dict()
    report.problems += problems_of(state, None if sharded else own)
    if report.problems:  # not to be taken in any case, and the model is left as it is
        return report
    missing, shapes = _load(model, state, report)
    for name, (theirs, ours) in shapes.items():
        report.fresh[name] = f'it has the shape {theirs} in the source, {ours} in the model'
    for name in missing:
        if _COUNTER not in name:
            report.fresh.setdefault(name, 'not in the source')
    report.matched = [n for n in state if n not in report.left_out and n not in report.fresh]
    # Where a model renames its entries, torch says what is missing by its modules, which `own` does not.
    inner = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    sizes = {**inner, **own, **state}
    renamed = any(name not in own for name in report.fresh)
    taken = [n for n in own if n in state or not renamed]
    report.sizes = {
        name: value.numel() if isinstance(value := sizes.get(name), Tensor) else 0
        for name in (*taken, *report.matched, *report.fresh)
    }
    return report


def problems_of(state: Mapping[str, Any], own: Mapping[str, Any] | None) -> list[str]:
    """What no weights can be: tensors of another kind than the model's own, NaN or infinite values.

    Args:
        state: Names to tensors.
        own: The model's entries, the only ones checked; they may be infinite themselves (masks); None: all are.
    """
    ours: Mapping[str, Any] = {} if own is None else own
    problems = [
        f'{name} is NaN or infinite'
        for name, value in state.items()
        if not _finite(value) and (own is None or (name in ours and not _same(value, ours[name])))
    ]
    for name, value in state.items():
        kept = ours.get(name)
        if not isinstance(value, Tensor) or _COUNTER in name:
            continue
        if isinstance(kept, Tensor) and _kind(value) != _kind(kept):
            problems.append(f'{name} is {_type(value)} in the source, {_type(kept)} in the model')
        elif own is None and name.endswith(_WEIGHTS) and _kind(value) != _REAL:
            problems.append(f'{name} is {_type(value)}')
    return problems


def misfits(report: LoadReport) -> list[str]:
    """What keeps a state dict from being a model's, whole: missing names, other shapes, unknown names."""
    shapes = [name for name in report.fresh if 'shape' in report.fresh[name]]
    missing = [name for name in report.fresh if name not in shapes]
    unknown = list(report.left_out)
    parts = []
    if missing:
        parts.append(
            f'{len(missing)} of {len(report.sizes)} entries are missing ({listed(missing)})'
        )
    if shapes:
        parts.append(
            f'{len(shapes)} have another shape ({listed(shapes)}: {report.fresh[shapes[0]]})'
        )
    if unknown:
        parts.append(f'{len(unknown)} are unknown to the model ({listed(unknown)})')
    return parts


def _bare(model: nn.Module) -> nn.Module:
    while isinstance(model, BaseTTAModel) or (
        is_model_wrapper(model) and not isinstance(model, FullyShardedDataParallel)
    ):
        model = cast(nn.Module, model.module)
    return model


def _load(
    model: nn.Module, state: OrderedDict[str, Any], report: LoadReport
) -> tuple[list[str], dict[str, tuple[str, str]]]:
    """Load; what is missing, and the shapes of what does not fit. The rest goes into the report."""
    missing: list[str] = []
    shapes = {}

    def note(_: nn.Module, keys: Any) -> None:
        missing[:] = keys.missing_keys
        report.left_out.update(dict.fromkeys(keys.unexpected_keys, 'the model has no such entry'))

    handle = model.register_load_state_dict_post_hook(note)
    try:
        model.load_state_dict(state, strict=False)
    except RuntimeError as error:  # torch names all that does not fit, after it has loaded the rest
        for line in str(error).splitlines()[1:]:
            found = _SHAPES.search(line)
            if found:
                shapes[found[1]] = (_pair(found[2]), _pair(found[3]))
            else:
                report.problems.append(line.strip())
    finally:
        handle.remove()
    return missing, shapes


def _kind(value: Tensor) -> tuple[bool, bool]:
    return value.is_floating_point(), value.is_complex()


def _type(value: Tensor) -> str:
    return str(value.dtype).removeprefix('torch.')


def _same(value: Tensor, ours: Any) -> bool:
    return isinstance(ours, Tensor) and torch.equal(value.cpu(), ours.cpu())


def _finite(value: Any) -> bool:
    if not isinstance(value, Tensor) or value.is_meta:
        return True
    if not (value.is_floating_point() or value.is_complex()):
        return True
    if value.is_floating_point() and value.element_size() == 1:
        value = value.float()  # 8-bit types know no isfinite
    return bool(torch.isfinite(value).all())


def _pair(text: str) -> str:
    return f'({text.strip("[]")})'


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
    """A state dict with the parameters of another embedding instead of a table, under the names of our backbones.

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
