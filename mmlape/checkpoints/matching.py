"""Which of a model's entries a state dict fills, under the model's own names."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any, cast

import torch
from mmengine.model import BaseTTAModel, is_model_wrapper
from torch import Tensor, nn
from torch.distributed.fsdp import FullyShardedDataParallel

from .report import LoadReport

_LISTED = 3
_SHAPES = re.compile(
    r'size mismatch for (\S+): copying a param with shape torch\.Size\((.*?)\) from checkpoint, '
    r'the shape in current model is torch\.Size\((.*?)\)'
)
# Left out by torch's own loading too: files of its old versions lack it.
_COUNTER = 'num_batches_tracked'
_EXTRA = '_extra_state'
_REAL = (True, False)
_WEIGHTS = ('.weight', '.bias')


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
        own: The model's entries, which alone are looked at, and may be infinite themselves (masks); None: all are.
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


def listed(names: Iterable[str]) -> str:
    """The first of some names, and how many more there are."""
    names = list(names)
    rest = len(names) - _LISTED
    return ', '.join(names[:_LISTED]) + (f' and {rest} more' if rest > 0 else '')


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
    if value.layout != torch.strided:
        value = value.coalesce().values() if value.layout == torch.sparse_coo else value.values()
    if value.is_floating_point() and value.element_size() == 1:
        value = value.float()  # 8-bit types know no isfinite
    return bool(torch.isfinite(value).all())


def _pair(text: str) -> str:
    return f'({text.strip("[]")})'
